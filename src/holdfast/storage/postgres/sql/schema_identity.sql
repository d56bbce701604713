-- Read who this store is.
select value from holdfast.meta where name = 'identity'
