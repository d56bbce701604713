-- Count the events before a moment, up to the first that is not, as pruning deletes them; tell whether there is one.
with young as (select event from holdfast_event where at_ms >= :before order by event limit 1)
select (select count(*) from holdfast_event
         where event < coalesce((select event from young), 9223372036854775807)),
       exists (select 1 from young)
