"""What each option of each command changes, beside the rules of :mod:`tests.options.test_cli` for common options."""

from __future__ import annotations

from tests.options.commands import RELAY, Row

COUNTED = ("shop:order", "--runs", "2", "--seed", "1", "--may-fail", "--json")
MACHINES: dict[str, dict[str, Row]] = {
    "demo": {
        "--orders": Row(("--orders", "7"), "orders=7,", "orders=200,"),
        "--workers": Row(("--workers", "3"), "workers=3,", "workers=2,"),
        "--seed": Row(("--seed", "7"), "seed=7,", "seed=1,"),
        "--keep": Row(("--keep",), "keep=True", "keep=False"),
    },
    "new": {"--folder": Row(("--folder", "there"), "^there/ticket.py", "^ticket.py")},
    "check": {
        "--strict": Row(("--strict",), "exit 1", "exit 0", ("warns.yaml",)),
        "--format": Row(("--format", "github"), "^::warning ", call=("warns.yaml",)),
        "--diagram": Row(("--diagram",), "^stateDiagram", "fine"),
    },
    "simulate": {
        "--runs": Row(("--runs", "3"), " 3 runs", " 2 runs", ("shop:order", "--seed", "1", "--may-fail"),
                      ("--runs", "2")),
        "--crashes": Row(("--crashes",), call=COUNTED),
        "--duplicates": Row(("--duplicates",), call=COUNTED),
        "--seed": Row(("--seed", "5"), '"first_seed": 5', '"first_seed": 1',
                      ("shop:order", "--runs", "1", "--may-fail", "--json"), ("--seed", "1")),
        "--events": Row(("--events", "events.yaml"), "did not mean to",
                        call=("order.yaml", "--runs", "50", "--seed", "1")),
        "--real-tasks": Row(("--real-tasks",), "^files.* shipped",
                            call=("shop:order", "--runs", "10", "--seed", "1", "--may-fail")),
        "--may-fail": Row(("--may-fail",), "exit 0", "exit 1",
                          ("order.yaml", "--runs", "50", "--seed", "1", "--events", "events.yaml")),
        "--seconds": Row(("--seconds", "0"), '"runs": 1,', '"runs": 3,',
                         ("shop:order", "--runs", "3", "--seed", "1", "--may-fail", "--json")),
    },
}  # fmt: skip
EXECUTIONS: dict[str, dict[str, Row]] = {
    "start": {
        "--id": Row(("--id", "of-mine"), "^of-mine$"),
        "--input": Row(("--input", '{"amount": 42}'), '"amount": 42', '"amount": 0',
                       ("shop:order", "--id", "n-1"), then=("show", "n-1")),
        "--machine": Row(("--machine", "shop"), "exit 0", "exit 2", ("order",)),
    },
    "send": {
        "--event-id": Row(("--event-id", "e-7"), "id e-7", then=("show", "o-1")),
        "--priority": Row(("--priority", "9"), "priority.*\\n?.*exit 2", "exit 0"),
    },
    "worker": {
        "--concurrency": Row(("--concurrency", "3"), "concurrency=3,", "concurrency=16,"),
        "--poll-s": Row(("--poll-s", "0.5"), "poll_s=0.5,", "poll_s=1.0,"),
        "--lease-s": Row(("--lease-s", "20"), "lease_s=20.0,", "lease_s=30.0,"),
        "--heartbeat-s": Row(("--heartbeat-s", "2"), "heartbeat_s=2.0", "heartbeat_s=5.0"),
        "--drain-s": Row(("--drain-s", "9"), "drain_s=9.0", "drain_s=30.0"),
        "--trace-max": Row(("--trace-max", "7"), "trace_max=7,", "trace_max=9,"),
        "--verbose": Row(("--verbose",), "INFO casework: an attempt failed"),
    },
    "wait": {"--timeout-s": Row(("--timeout-s", "0"), " 0 s", " 0.01 s", ("o-1",), ("--timeout-s", "0.01"))},
    "list": {
        "--status": Row(("--status", "failed"), gone="^o-1 "),
        "--machine": Row(("--machine", "ended"), gone="^o-1 "),
        "--parent": Row(("--parent", "p-1"), gone="^o-1 "),
        "--dead": Row(("--dead",), "nothing to list", "^o-1 "),
        "--limit": Row(("--limit", "1"), "more with --cursor"),
        "--cursor": Row(("--cursor", "odd"), "not a cursor", "exit 0"),
    },
    "cancel": {"--machine": Row(("--machine", "family:asked"), "a-1 is running in b", "cannot be asked", ("a-1",))},
    "redrive": {
        "--machine": Row(("--machine", "shop:order"), "exit 1", "name the machine", ("f-1",)),
        "--skip": Row(("--skip",), "exit 0", "exit 1"),
    },
    "purge": {
        "--tree": Row(("--tree",), gone="--tree takes", call=("p-1",)),
        "--force": Row(("--force",), "is gone", "exit 2", ("o-1",)),
        "--before": Row(("--before", "0s"), "executions? purged", "exit 2", ()),
        "--status": Row(("--status", "failed"), gone="^e-1", call=("--before", "0s")),
        "--machine": Row(("--machine", "ended"), gone="^f-1", call=("--before", "0s")),
        "--dry-run": Row(("--dry-run",), "would be purged", "deleted", ("--before", "0s")),
    },
    "migrate": {
        "--machine": Row(("--machine", "shop:order"), "o-1 runs order", "name the machine", ("o-1",)),
        "--to": Row(("--to", "later"), "a-1 runs later", "a-1 runs asked", ("a-1", "--machine", "family")),
    },
    "settings": {
        "--dedupe-window-s": Row(("--dedupe-window-s", "77"), "dedupe_window_s +77"),
        "--buckets": Row(("--buckets", "64"), "buckets +64"),
        "--trace-max": Row(("--trace-max", "77"), "trace_max +77"),
        "--take-codec": Row(("--take-codec",), "codec +plain", call=("--app", "shopapp:coded")),
    },
}  # fmt: skip
STREAMS: dict[str, dict[str, Row]] = {
    "relay": {
        "--host": Row(("--host", "127.0.0.2"), "host 127.0.0.2", "host 127.0.0.1"),
        "--port": Row(("--port", "0"), "port 0", "port 8420"),
        "--push-deadline": Row(("--push-deadline", "7"), "push_deadline_s=7.0", "push_deadline_s=20.0"),
        "--max-body-bytes": Row(("--max-body-bytes", "2000"), "max_body_bytes=2000", "max_body_bytes=6291456"),
    },
    "token create": {
        "--label": Row(("--label", "till 3"), "till 3", then=("token", "list")),
        "--ttl-s": Row(("--ttl-s", "60"), "ends at", then=("token", "list")),
    },
    "streams head": {"--group": Row(("--group", "parks"), "parks: at 3")},
    "streams read": {
        "--after": Row(("--after", "2"), gone="op-1"),
        "--limit": Row(("--limit", "1"), gone="op-2"),
        "--follow": Row(("--follow",), "exit 130", "exit 0"),
    },
    "streams append": {
        "--lines": Row(("--lines", "lines.jsonl"), "of-a-line", "exit 2", ("s",)),
        "--expected-seq": Row(("--expected-seq", "99"), "not at 99 as expected", "op-9"),
    },
    "streams truncate": {"--repush-window-s": Row(("--repush-window-s", "0"), "2 operations removed", "kept")},
    "streams seek": {"--to": Row(("--to", "2"), "goes on behind 2", "goes on behind 0", ("parks", "s"),
                                ("--to", "floor"))},
    "streams resume": {"--skip": Row(("--skip",), "goes on behind 1", "goes on behind 0")},
    "streams parked": {
        "--limit": Row(("--limit", "1"), gone="op-2"),
        "--after": Row(("--after", "1"), gone="op-1"),
    },
    "replica init": {
        "--stream": Row(("--stream", "other"), "replica of other", "replica of s",
                        ("new.replica", "--relay", RELAY), ("--stream", "s")),
        "--relay": Row(("--relay", "http://127.0.0.2:9"), "127.0.0.2", "127.0.0.1",
                       ("new.replica", "--stream", "s"), ("--relay", RELAY),
                       ("replica", "pull", "new.replica", "--token", "t")),
    },
    "replica append": {"--id": Row(("--id", "of-mine"), "^of-mine$")},
    "replica read": {"--after": Row(("--after", "1"), gone="far-1")},
    "replica differences": {
        "--push": Row(("--push",), "waiting to be pushed", "nothing differs"),
        "--forget": Row(("--forget",), "forgotten", "nothing differs"),
    },
    "replica unpark": {
        "--drop": Row(("--drop",), "is dropped", "is waiting again"),
        "--new-id": Row(("--new-id", "other"), "-  other  x", "-  parked  x", then=("replica", "read", "r.replica")),
    },
    "dynamodb template": {"--prefix": Row(("--prefix", "shop"), '"Default": "shop"', '"Default": "casework"')},
    "dynamodb iam": {
        "--prefix": Row(("--prefix", "shop"), "table/shop", "table/casework"),
        "--role": Row(("--role", "admin"), "CreateTable"),
    },
    "idempotency list": {
        "--state": Row(("--state", "claimed"), gone="shop.pay/2"),
        "--prefix": Row(("--prefix", "shop.pay/2"), gone="shop.pay/1"),
        "--limit": Row(("--limit", "1"), "more with --cursor"),
        "--cursor": Row(("--cursor", "odd"), "cursor", "exit 0"),
    },
    "idempotency purge": {"--expired": Row(("--expired",), "items? deleted", "exit 2", ())},
}  # fmt: skip
NOT_SEEN_HERE = {("streams repair", "--apply"), ("replica rebase", "--skip-lost")}
"""They need a stream with a hole, and a relay whose stream was truncated: what they hand on to has rows of its own."""
ROWS = {**MACHINES, **EXECUTIONS, **STREAMS}
