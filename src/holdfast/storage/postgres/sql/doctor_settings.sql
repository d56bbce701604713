-- Tell the settings on which the promises rest.
select current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       current_setting('autovacuum'), current_setting('track_counts')
