"""Every limit in one place. Each is documented in docs/limits.md, and a test compares the two.

Sizes are UTF-8 bytes of the encoded JSON unless the name says characters; times are milliseconds.
"""

from __future__ import annotations

from typing import Final

SECOND_MS: Final = 1_000
HOUR_MS: Final = 3_600 * SECOND_MS
DAY_MS: Final = 24 * HOUR_MS

# Names and keys.
NAME_CHARS_MAX: Final = 200
JOB_ID_CHARS_MAX: Final = 200
DEDUPE_KEY_CHARS_MAX: Final = 500
LEASE_TOKEN_CHARS_MAX: Final = 200
URL_CHARS_MAX: Final = 4_000
MESSAGE_ID_CHARS_MAX: Final = 500
REASON_CHARS_MAX: Final = 64
PHASE_CHARS_MAX: Final = 200

# Content.
PAYLOAD_BYTES_MAX: Final = 1 << 20
RESULT_BYTES_MAX: Final = 1 << 20
JSON_DEPTH_MAX: Final = 64
INTEGER_DIGITS_MAX: Final = 1_000
HEADERS_MAX: Final = 32
HEADER_VALUE_CHARS_MAX: Final = 2_000
TAGS_MAX: Final = 32
TAG_VALUE_CHARS_MAX: Final = 500
REQUIRES_MAX: Final = 16
KIND_SCHEMA_BYTES_MAX: Final = 64 << 10
ARTIFACTS_MAX: Final = 100
ARTIFACT_BYTES_MAX: Final = 64 << 20
ARTIFACTS_DIRECT_BYTES_MAX: Final = 16 << 20
ARTIFACT_CHUNK_BYTES: Final = 256 << 10
OUTPUT_CHUNK_BYTES_MAX: Final = 64 << 10
OUTPUT_BYTES_MAX: Final = 16 << 20

# Failure texts come from exceptions, so they are shortened rather than refused.
FAILURE_MESSAGE_CHARS_MAX: Final = 4_000
TRACEBACK_CHARS_MAX: Final = 20_000

# Numbers.
PRIORITY_MAX: Final = 1_000
MAX_ATTEMPTS_MAX: Final = 1_000
MAX_ATTEMPTS_DEFAULT: Final = 5

# Maximum sizes of one call.
ENQUEUE_MANY_MAX: Final = 10_000
ENQUEUE_MANY_BYTES_MAX: Final = 64 << 20
CLAIM_MAX: Final = 1_000
SETTLE_MANY_MAX: Final = 1_000
FOLLOW_UPS_MAX: Final = 1_000
# PostgreSQL keeps advisory locks in a table of limited size that all transactions share.
KEYS_LOCKED_MAX: Final = 256
PAGE_MAX: Final = 1_000
PAGE_DEFAULT: Final = 100
OUTPUT_PAGE_MAX: Final = 100
CLAIM_LANES_MAX: Final = 100
CLAIM_KINDS_MAX: Final = 1_000
CAPABILITIES_MAX: Final = 256
AFFINITIES_MAX: Final = 64
REQUEUE_MANY_MAX: Final = 1_000
ROUTES_MAX: Final = 10_000
SESSION_ENTRY_MESSAGES_MAX: Final = 1_000
SESSION_CLAIM_DEFAULT: Final = 100
SESSION_SCAN_SURPLUS: Final = 32

# The maximum count of a backlog; it bounds the cost of counting.
BACKLOG_COUNTED_MAX: Final = 100_000
BACKLOG_PRIORITIES_MAX: Final = 32
BACKLOG_TURNS_MAX: Final = 1_000

# Times.
LEASE_MS_MIN: Final = 10
LEASE_MS_MAX: Final = DAY_MS
LEASE_MS_DEFAULT: Final = 30 * SECOND_MS
PAUSE_MS_MAX: Final = 366 * DAY_MS
WAIT_MS_MAX: Final = DAY_MS
DEFERRED_MS_MAX: Final = 7 * DAY_MS
RELEASES_MAX: Final = 100
UNACKNOWLEDGED_MAX: Final = 3
UPLOAD_MS_DEFAULT: Final = DAY_MS
UPLOAD_MS_MAX: Final = 7 * DAY_MS
TASK_TIMEOUT_MS_DEFAULT: Final = HOUR_MS
TRANSACTION_MS_DEFAULT: Final = 5 * SECOND_MS
TRANSACTION_MS_MAX: Final = 60 * SECOND_MS
TIMESTAMP_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999

# Workers.
CONCURRENCY_MAX: Final = 1_000
PROCESSES_MAX: Final = 256
MEMORY_LIMIT_BYTES_MIN: Final = 64 << 20
MEMORY_LIMIT_BYTES_MAX: Final = 1 << 50
RECYCLE_AFTER_DEFAULT: Final = 1_000
RECYCLE_AFTER_MAX: Final = 1_000_000
RECYCLE_GROWTH_BYTES: Final = 512 << 20
KILL_AFTER_MS_DEFAULT: Final = 5 * SECOND_MS
WORKER_SILENT_MS: Final = 60 * SECOND_MS
WORKERS_FORGOTTEN_MS: Final = 7 * DAY_MS

# The HTTP service.
TOKEN_USE_MS: Final = 60 * SECOND_MS
TOKEN_OVERLAP_MS_DEFAULT: Final = DAY_MS

# History and maintenance.
ATTEMPTS_KEPT: Final = 100
CHUNK: Final = 200
UPLOAD_BYTES_DELETED: Final = 8 << 20
OUTPUT_CHUNKS_WRITTEN: Final = 16
OUTPUT_CHUNKS_PRUNED: Final = 10_000
MESSAGE_IDS_KEPT_MS_DEFAULT: Final = 7 * DAY_MS
