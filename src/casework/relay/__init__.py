"""The relay: streams over HTTP. Needs the ``web`` extra.

``service`` holds what it does, without HTTP; ``http`` the routes, ``serve`` a server around them, ``aws_lambda`` a
handler for AWS Lambda behind an API gateway. Start it with ``casework relay``.
"""
