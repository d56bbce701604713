-- Tell the version of the server.
select current_setting('server_version'), current_setting('server_version_num')::integer
