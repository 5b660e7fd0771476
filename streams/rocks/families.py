"""The column families of a database, and the options RocksDB opens them with.

The families are fixed at creation: a reader cannot follow a log whose owner adds one. All families share one block
cache and one write-buffer budget, so memory does not grow with the log. In a process with many databases all of them
share one `Memory`.
"""

from __future__ import annotations

from typing import Literal, get_args

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, WriteBufferManager

from refold.avro.errors import InputError

Family = Literal[
    "observations",
    "changes",
    "deadletters",
    "schemas",
    "manifests",
    "snapshots",
    "state",
    "timeline",
    "arrivals",
    "checkpoints",
    "digests",
    "ids",
    "meta",
]
FAMILIES: tuple[Family, ...] = get_args(Family)

BLOCK_CACHE_BYTES = 96 << 20
WRITE_BUDGET_BYTES = 96 << 20
# The data that a reader, or an owner after a crash, has to read and hold when it opens the log.
WAL_BYTES = 96 << 20
OWNER_OPEN_FILES = 256
# For all databases of one process together. With 32 MiB of write buffers, compaction cost a worker of 200,000 entities
# 8 us a record, and with 64 MiB 4 us; 128 MiB and a larger cache gained nothing more.
SHARED_CACHE_BYTES = 24 << 20
SHARED_WRITE_BYTES = 64 << 20
# For each of them: after a crash they are opened in parallel.
SHARED_WAL_BYTES = 24 << 20
SHARED_OPEN_FILES_MIN = 16
MEMORY_BYTES_MIN = 1 << 20
SHARED_FILE_BUFFER_BYTES = 128 << 10
# RocksDB starts its default of 16 threads for each family, also for one without a table file: 208 threads, which take
# half of the time to open a small log. An owner opens at most a quarter of its limit of files at first; a reader all.
_TABLES_PER_THREAD = 64
_OPENING_THREADS_MAX = 16

# A buffer is half full on average, so together they may be a third larger than the budget. States get half of a
# database's share; the timeline, arrivals and ids, which fill slowly, get a sixth each.
_BOUND_TO_BUDGET = 4 / 3
_STATES_PART, _OTHERS_PART = 1 / 2, 1 / 6
_BUFFER_BYTES_MIN = 256 << 10
# Most lookups in these families are for missing keys (new entities, new observations).
_BLOOM_FAMILIES = frozenset({"state", "timeline", "arrivals"})
_BLOOM_BITS_PER_KEY = 10
# A point read reads a whole block: small blocks for single reads, large ones for range reads.
_POINT_BLOCK_BYTES = 4 << 10
_RANGE_BLOCK_BYTES = 16 << 10
# Snapshots are long records that are written and read in order, so frequent compaction gains nothing.
_SNAPSHOT_TABLES = 12


class Memory:
    """The memory of all databases of one process: a block cache, a write-buffer budget, and a limit of open files.

    Close every database that uses it before it is deleted.
    """

    def __init__(
        self, databases: int, *, cache_bytes: int = SHARED_CACHE_BYTES, write_bytes: int = SHARED_WRITE_BYTES
    ) -> None:
        """Reserve nothing yet.

        Args:
            databases: The number of databases.
            cache_bytes: The size of their block cache, in bytes.
            write_bytes: The size that their write buffers have together, in bytes.
        """
        self.cache = Cache(cache_bytes)
        # Without stalls: above the budget the writing database flushes, and the others are not blocked. It flushes one
        # family, so each family also has a limit of its own, to keep all of them near the budget.
        self.buffers = WriteBufferManager(write_bytes, False)
        self._bound = write_bytes * _BOUND_TO_BUDGET / max(1, databases)
        self.open_files = max(SHARED_OPEN_FILES_MIN, 4 * OWNER_OPEN_FILES // max(1, databases))

    @classmethod
    def limited_to(cls, size_bytes: int) -> Memory:
        """Return the memory of one database: half of it for its cache, half for its write buffers.

        Raises:
            InputError: It is less than 1 MiB.
        """
        if size_bytes < MEMORY_BYTES_MIN:
            raise InputError(f"memory_bytes is {size_bytes:,}: give at least {MEMORY_BYTES_MIN:,}")
        return cls(1, cache_bytes=size_bytes // 2, write_bytes=size_bytes // 2)

    def buffer_bytes(self, family: str) -> int:
        """The maximum size of one family's write buffer, in bytes."""
        part = _STATES_PART if family == "state" else _OTHERS_PART
        return max(_BUFFER_BYTES_MIN, int(self._bound * part))


def owner_options(*, create: bool, memory: Memory | None = None) -> tuple[Options, dict[str, Options]]:
    """The options for the writing process: (database, {family: its options})."""
    if memory is None:
        return _options(Cache(BLOCK_CACHE_BYTES), create=create, open_files=OWNER_OPEN_FILES)
    options, families = _options(memory.cache, create=create, open_files=memory.open_files)
    for family, each in families.items():
        each.set_write_buffer_size(memory.buffer_bytes(family))
    # Each database has a buffer for its write-ahead log, of 1 MB by default.
    options.set_writable_file_max_buffer_size(SHARED_FILE_BUFFER_BYTES)
    options.set_write_buffer_manager(memory.buffers)
    options.set_max_total_wal_size(SHARED_WAL_BYTES)
    return options, families


def reader_options(folder: str, tables: int) -> tuple[Options, dict[str, Options]]:
    """Options of a reader's instance of a database with so many table files; RocksDB's messages go to `folder`.

    It keeps every table file open. With a limit, the owner's compaction could remove a file that the reader has to open
    again, and the read would fail.
    """
    options, families = _options(Cache(BLOCK_CACHE_BYTES), create=False, open_files=-1)
    options.set_db_log_dir(folder)
    options.set_max_file_opening_threads(min(1 + tables // _TABLES_PER_THREAD, _OPENING_THREADS_MAX))
    return options, families


def _options(cache: Cache, *, create: bool, open_files: int) -> tuple[Options, dict[str, Options]]:
    options = _family_options("default", cache)
    options.create_if_missing(create)
    options.create_missing_column_families(create)
    options.set_paranoid_checks(True)
    # Refuses a damaged record within the log, and drops a record torn by a crash at its end. The default mode (point in
    # time) silently opens at the state before the damage.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_db_write_buffer_size(WRITE_BUDGET_BYTES)
    options.set_max_total_wal_size(WAL_BYTES)
    options.set_max_open_files(open_files)
    options.set_max_file_opening_threads(1)
    options.set_max_background_jobs(2)
    options.set_bytes_per_sync(1 << 20)
    # No limit of LOG's size: with one, RocksDB removes old LOG files before it holds the lock, and of two processes
    # that open at once the slower one fails. Without the dumps of statistics it grows by some KiB a compaction.
    options.set_keep_log_file_num(2)
    options.set_stats_dump_period_sec(0)
    return options, {family: _family_options(family, cache) for family in FAMILIES}


def _family_options(family: str, cache: Cache) -> Options:
    pointwise = family in _BLOOM_FAMILIES
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    # Index and filter blocks are in the cache; otherwise their memory grows with the number of keys.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_block_size(_POINT_BLOCK_BYTES if pointwise else _RANGE_BLOCK_BYTES)
    table.set_format_version(5)
    if pointwise:
        table.set_bloom_filter(_BLOOM_BITS_PER_KEY, False)
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_write_buffer_size(32 << 20)
    options.set_max_write_buffer_number(3)
    options.set_target_file_size_base(64 << 20)
    if family == "snapshots":
        options.set_level_zero_file_num_compaction_trigger(_SNAPSHOT_TABLES)
    return options
