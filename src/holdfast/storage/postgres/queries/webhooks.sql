-- Webhooks: subscriptions, the position of the dispatcher, and the URLs of jobs.

-- name: webhook_delete
-- Delete a webhook.
delete from holdfast.webhook where id = %(id)s;

-- name: webhook_exists
-- Return whether an active webhook or a job with a URL may need events.
select exists (select 1 from holdfast.webhook where state = 'active') or exists (select 1 from holdfast.webhook_job);

-- name: webhook_insert
-- Store a webhook, unless there is one with its id.
insert into holdfast.webhook (id, url, tenant, types, kinds, lanes, tags, include_results, concurrency,
    per_job, state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms,
    last_answer, secrets, closings, probe_until_ms, places)
values (%(id)s, %(url)s, %(tenant)s, %(types)s, %(kinds)s, %(lanes)s, %(tags)s, %(include_results)s, %(concurrency)s,
    %(per_job)s, %(state)s, %(reason)s, %(created_at_ms)s, %(since_ms)s, %(last_success_at_ms)s, %(failing_since_ms)s,
    %(closed_until_ms)s, %(last_answer)s, %(secrets)s, %(closings)s, %(probe_until_ms)s, %(places)s)
on conflict (id) do nothing;

-- name: webhook_job_insert
-- Store the URLs of jobs; a job that was replaced gets the new one.
insert into holdfast.webhook_job (job_id, url)
select job_id, url from unnest(%(rows_0)s::text[], %(rows_1)s::text[]) as t (job_id, url)
on conflict (job_id) do update set url = excluded.url;

-- name: webhook_job_urls
-- Read the URLs of those of these jobs that have one.
select job_id, url from holdfast.webhook_job where job_id = any (%(ids)s::text[]);

-- name: webhook_jobs_after
-- Read some jobs with URLs in order of their ids, and whether each still exists.
select w.job_id, exists (select 1 from holdfast.job j where j.id = w.job_id)
  from holdfast.webhook_job w
 where w.job_id > %(after)s
 order by w.job_id
 limit %(limit)s;

-- name: webhook_jobs_delete
-- Delete the URLs of jobs.
delete from holdfast.webhook_job where job_id = any (%(ids)s::text[]);

-- name: webhook_lane_ready
-- Return whether a lane has a ready job.
select exists (select 1 from holdfast.ready_job where route in (select route from holdfast.route where lane = %(lane)s));

-- name: webhook_places_write
-- Store which processes have places at endpoints.
update holdfast.webhook w set places = p.places
  from unnest(%(rows_0)s::text[], %(rows_1)s::text[]) as p (id, places)
 where w.id = p.id;

-- name: webhook_position
-- Read how far the dispatcher has read the log, and which process does until when.
select value from holdfast.meta where name = 'webhook_position';

-- name: webhook_position_write
-- Move the position, unless another process has moved it.
update holdfast.meta set value = %(new)s where name = 'webhook_position' and value = %(old)s;

-- name: webhook_write
-- Store the state and the secrets of a webhook.
update holdfast.webhook
   set state = %(state)s, reason = %(reason)s, since_ms = %(since_ms)s,
       last_success_at_ms = %(last_success_at_ms)s, failing_since_ms = %(failing_since_ms)s,
       closed_until_ms = %(closed_until_ms)s, last_answer = %(last_answer)s,
       secrets = %(secrets)s, closings = %(closings)s, probe_until_ms = %(probe_until_ms)s
 where id = %(id)s;

-- name: webhooks_active
-- Read the active webhooks.
select id, url, tenant, types, kinds, lanes, tags, include_results, concurrency, per_job,
       state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms, last_answer,
       secrets, closings, probe_until_ms, places
  from holdfast.webhook
 where state = 'active';

-- name: webhooks_by_id
-- Read webhooks by their ids.
select id, url, tenant, types, kinds, lanes, tags, include_results, concurrency, per_job,
       state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms, last_answer,
       secrets, closings, probe_until_ms, places
  from holdfast.webhook
 where id = any (%(ids)s::text[]) order by id
/* lock: for update */;

-- name: webhooks_newest
-- Read the webhooks that were added last.
select id, url, tenant, types, kinds, lanes, tags, include_results, concurrency, per_job,
       state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms, last_answer,
       secrets, closings, probe_until_ms, places
  from holdfast.webhook
 where (%(tenant)s::text is null or tenant = %(tenant)s)
 order by created_at_ms desc, id
 limit %(limit)s;
