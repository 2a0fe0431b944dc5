"""Real DynamoDB servers on loopback for the tests, and a proxy that loses their answers.

``process`` starts and stops them, ``fixtures`` gives them to tests (``ministack_url``, ``roto_url``, ``moto_url``,
``roto_server``, ``lossy_proxy``), ``lossy_proxy`` stands in front of one. Only the standard library and pytest are
imported here, so that the kernel's tests run in an environment without boto3.
"""
