"""What went wrong with a call, and how much that tells. Pure: errors are read by their names, no SDK is imported.

The one question that matters is whether the request may have been carried out although its answer is not here:

- a refusal by the service (a 4xx answer) says: not carried out;
- a connection that was never made says: not carried out;
- everything else that ends without an answer, and every 5xx answer, says nothing. Such a fault is *lost*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from casework.errors import (
    CaseworkError,
    Contention,
    ItemTooLarge,
    MissingTable,
    Misuse,
    OutcomeUnknown,
    Throttled,
    Unavailable,
)

Kind = Literal[
    "refused",  # a single write's condition did not hold
    "cancelled",  # a transaction was cancelled; the reasons say why
    "conflict",  # another transaction holds the item
    "in_progress",  # an earlier attempt of this very transaction is being carried out
    "mismatch",  # the transaction's token was used with other parameters
    "throttled",
    "missing_table",
    "too_large",
    "invalid",  # the service did not understand or accept the request
    "unexpected",  # the service refused it for a reason that is not known here; it may pass
    "denied",  # credentials or permissions
    "credentials",  # the client has no credentials at this moment, so nothing was sent; a provider may have them again
    "setup",  # the client can never send: no region, a profile that is not there
    "unsent",  # no connection was made
    "lost",  # sent, perhaps carried out, no answer
]

DOUBTFUL = frozenset(("lost", "in_progress"))
"""After one of these the request may have been carried out."""

TRANSIENT = frozenset(("conflict", "in_progress", "throttled", "unsent", "lost"))
"""Faults that another attempt can get past."""


class Fault(msgspec.Struct, frozen=True):
    """Why a call has no result."""

    kind: Kind
    code: str
    """The service's error code, or the name of the SDK's exception."""
    message: str
    response: Mapping[str, Any] = {}
    """The whole answer of the service; empty when there was none."""


class Reply(msgspec.Struct, frozen=True):
    """What became of one call: ``response``, or ``fault``."""

    response: Mapping[str, Any] | None = None
    fault: Fault | None = None
    doubtful: bool = False
    """The SDK repeated the request by itself, and an earlier attempt may have been carried out."""
    sent_s: float = 0.0
    """When the call began and ended, in seconds on a clock of this host that only moves forward."""
    received_s: float = 0.0


_CODES: dict[str, Kind] = {
    "ConditionalCheckFailedException": "refused",
    "TransactionCanceledException": "cancelled",
    "TransactionConflictException": "conflict",
    "ReplicatedWriteConflictException": "conflict",
    "TransactionInProgressException": "in_progress",
    "IdempotentParameterMismatchException": "mismatch",
    "ProvisionedThroughputExceededException": "throttled",
    "ThrottlingException": "throttled",
    "Throttling": "throttled",
    "ThrottledException": "throttled",
    "RequestThrottledException": "throttled",
    "RequestThrottled": "throttled",
    "RequestLimitExceeded": "throttled",
    "TooManyRequestsException": "throttled",
    "LimitExceededException": "throttled",
    "LimitExceeded": "throttled",
    "SlowDown": "throttled",
    "PriorRequestNotComplete": "throttled",
    "BandwidthLimitExceeded": "throttled",
    "TransactionThrottledException": "throttled",
    "ResourceNotFoundException": "missing_table",
    "TableNotFoundException": "missing_table",
    "ItemCollectionSizeLimitExceededException": "too_large",
    "RequestEntityTooLarge": "too_large",
    "ValidationException": "invalid",
    "ValidationError": "invalid",
    "SerializationException": "invalid",
    "UnknownOperationException": "invalid",
    "InvalidParameterValue": "invalid",
    "InvalidParameterCombination": "invalid",
    "MissingParameter": "invalid",
    "InternalServerError": "lost",
    "InternalFailure": "lost",
    "ServiceUnavailable": "lost",
    "ServiceUnavailableException": "lost",
    "RequestTimeout": "lost",
    "RequestTimeoutException": "lost",
    "AccessDeniedException": "denied",
    "AccessDenied": "denied",
    "UnrecognizedClientException": "denied",
    "ExpiredTokenException": "denied",
    "ExpiredToken": "denied",
    "InvalidSignatureException": "denied",
    "IncompleteSignature": "denied",
    "IncompleteSignatureException": "denied",
    "MissingAuthenticationToken": "denied",
    "MissingAuthenticationTokenException": "denied",
    "InvalidClientTokenId": "denied",
    "SignatureDoesNotMatch": "denied",
    "RequestExpired": "denied",
    "RequestTimeTooSkewed": "denied",
    "RequestInTheFuture": "denied",
    "OptInRequired": "denied",
}

_SIZE_WORDS = ("item size", "maximum allowed size", "size limit", "collection size", "exceeds the limit of 4", "4 mb")


def _speaks_of_size(message: str) -> bool:
    lowered = message.lower()
    return any(words in lowered for words in _SIZE_WORDS)


def fault_of_answer(response: Mapping[str, Any]) -> Fault:
    """The fault in an error answer of the service, as the SDK parses it."""
    error = response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
    kind = _CODES.get(code.rpartition("#")[2])
    if kind is None:
        kind = "lost" if status >= 500 or status == 408 else "throttled" if status == 429 else "unexpected"
    if kind in ("invalid", "unexpected") and (_speaks_of_size(message) or status == 413):
        kind = "too_large"
    return Fault(kind, code, message, response)


_CREDENTIALS = frozenset(
    (
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "MetadataRetrievalError",
        "NoAuthTokenError",
        "TokenRetrievalError",
        "RefreshWithMFAUnsupportedError",
        "SSOError",
        "LoginError",
    )
)
"""A provider that refreshes fails with these while its own service is down: nothing was sent, and it may pass."""

_SETUP = frozenset(
    (
        "NoRegionError",
        "InvalidRegionError",
        "ProfileNotFound",
        "InvalidConfigError",
        "ConfigParseError",
        "ConfigNotFound",
        "UnknownCredentialError",
        "UnknownTokenProviderError",
        "UnknownEndpointError",
        "EndpointProviderError",
    )
)
_UNSENT = frozenset(
    ("EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "ClientConnectorError", "gaierror")
)
_UNSENT_WORDS = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_INVALID = frozenset(("ParamValidationError",))
_TRANSPORT = frozenset(
    ("BotoCoreError", "HTTPClientError", "ClientError", "HTTPError", "OSError", "TimeoutError", "ResponseParserError")
)


class GarbledAnswer(OSError):
    """What came back is not the service's: cut off, damaged, or of somebody in between. It says nothing."""


def fault_of_exception(error: BaseException) -> Fault | None:
    """The fault that an exception of the SDK stands for; None when it is not one of the SDK or the transport."""
    response = getattr(error, "response", None)
    names = [kind.__name__ for kind in type(error).__mro__]
    if "ClientError" in names and isinstance(response, Mapping):
        return fault_of_answer(response)
    text = str(error)
    for kind, known in (("credentials", _CREDENTIALS), ("setup", _SETUP), ("invalid", _INVALID), ("unsent", _UNSENT)):
        if not known.isdisjoint(names):
            return Fault(kind, names[0], text)  # type: ignore[arg-type]
    if "SSLError" in names and any(word in text for word in _UNSENT_WORDS):
        return Fault("unsent", names[0], text)
    if not _TRANSPORT.isdisjoint(names) or type(error).__module__.partition(".")[0] in ("urllib3", "aiohttp"):
        return Fault("lost", names[0], text)
    return None


# --- from a fault to the error that a caller sees -------------------------------------------------------------------

_ADVICE = {
    "AccessDenied": "allow the action that it names: casework.aws.iam_policy() has the whole policy",
    "Expired": "the credentials have expired; renew them",
    "UnrecognizedClient": "the access key is not known to AWS; check the credentials and the region",
    "InvalidSignature": "check the secret key and this host's clock, which must be right to within five minutes",
    "Token": "log in again, or renew the token that the credentials come from",
    "RequestTimeTooSkewed": "set this host's clock, which must be right to within five minutes",
    "RequestInTheFuture": "set this host's clock, which must be right to within five minutes",
    "Credential": "give the client credentials: environment variables, a profile, or a role (`aws configure`)",
    "Region": "name the region: region_name=..., AWS_REGION, or ?region= in the URL",
}


def _advice(fault: Fault) -> str:
    for word, advice in _ADVICE.items():
        if word in fault.code:
            return advice
    return "check the credentials and the client's configuration"


def error_of(fault: Fault, what: str, *, doubt: bool, writes: bool) -> CaseworkError:
    """The error for a fault that no further attempt will get past.

    Args:
        fault: the last one.
        what: the request in words, for the message.
        doubt: an earlier attempt may have been carried out.
        writes: the request changes something, so that the doubt matters.
    """
    said = f"{what}: {fault.code}: {fault.message}"
    kind = fault.kind
    if writes and (doubt or kind in DOUBTFUL):
        return OutcomeUnknown(
            f"{said} - an attempt may have been carried out and its answer was lost; read the items before repeating it"
        )
    if kind == "missing_table":
        return MissingTable(f"{said} - make the tables with `casework dynamodb create` or create_tables()")
    if kind == "too_large":
        return ItemTooLarge(f"{said} - nothing was written; store less in one item")
    if kind == "throttled":
        return Throttled(f"{said} - nothing was written; try again later")
    if kind == "conflict":
        return Contention(f"{said} - another transaction holds the item, nothing was written; try again")
    if kind == "setup":
        return Misuse(f"{said} - {_advice(fault)}")
    if kind in ("denied", "credentials"):
        return Unavailable(f"{said} - {_advice(fault)}")
    if kind == "unexpected":
        return Unavailable(f"{said} - the service refused it for a reason unknown here, nothing was written")
    if kind == "mismatch":
        return Misuse(f"{said} - the transaction's token was used before with other contents; tokens must be fresh")
    if kind == "unsent":
        return Unavailable(f"{said} - nothing was sent; check the endpoint, the region and the network")
    if kind in DOUBTFUL:
        return Unavailable(f"{said} - the service gave no answer; try again later")
    return Misuse(f"{said} - nothing was written")


class Reason(msgspec.Struct, frozen=True):
    """Why one action of a transaction stood in its way; ``code`` is the text ``None`` when it did not."""

    code: str
    message: str = ""
    item: Mapping[str, Any] | None = None


def reasons_of(fault: Fault) -> list[Reason]:
    """The cancellation reasons; from the message where a server only lists their codes there."""
    listed = fault.response.get("CancellationReasons")
    if isinstance(listed, Sequence) and listed:
        return [Reason(r.get("Code") or "None", r.get("Message") or "", r.get("Item") or None) for r in listed]
    _, found, tail = fault.message.partition("[")
    codes = tail.partition("]")[0] if found else ""
    return [Reason(code.strip()) for code in codes.split(",") if code.strip()]


_REASON_KINDS: tuple[tuple[str, Kind], ...] = (
    ("ItemCollectionSizeLimitExceeded", "too_large"),
    ("ValidationError", "invalid"),
    ("ProvisionedThroughputExceeded", "throttled"),
    ("ThrottlingError", "throttled"),
    ("TransactionConflict", "conflict"),
)


def fault_of_reasons(fault: Fault, reasons: Sequence[Reason]) -> Fault:
    """What a cancellation without a failed condition amounts to: validation, then throttling, then conflict."""
    for code, kind in _REASON_KINDS:
        for position, reason in enumerate(reasons):
            if reason.code == code:
                if kind == "invalid" and _speaks_of_size(reason.message):
                    kind = "too_large"
                return Fault(kind, code, f"write {position}: {reason.message}", fault.response)
    others = [reason.code for reason in reasons if reason.code != "None"]
    return Fault("invalid", fault.code, f"{fault.message} (reasons: {others})", fault.response)
