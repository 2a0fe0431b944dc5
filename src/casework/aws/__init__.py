"""What an AWS account needs before casework can run in it: tables and permissions, as data.

Import from here: :func:`cloudformation`, :func:`iam_policy`.
"""

from __future__ import annotations

from casework.aws.templates import cloudformation, iam_policy

__all__ = ["cloudformation", "iam_policy"]
