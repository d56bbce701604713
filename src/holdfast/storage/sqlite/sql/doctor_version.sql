-- Tell the version of the SQLite library.
select sqlite_version()
