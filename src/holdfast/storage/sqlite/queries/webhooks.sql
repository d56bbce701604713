-- Webhooks: subscriptions, the position of the dispatcher, and the URLs of jobs.

-- name: webhook_delete
-- Delete a webhook.
delete from holdfast_webhook where id = :id;

-- name: webhook_exists
-- Return whether an active webhook or a job with a URL may need events.
select exists (select 1 from holdfast_webhook where state = 'active') or exists (select 1 from holdfast_webhook_job);

-- name: webhook_insert
-- Store a webhook, unless there is one with its id.
insert into holdfast_webhook (id, url, tenant, types, kinds, lanes, tags, include_results, concurrency,
    per_job, state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms,
    last_answer, secrets, closings, probe_until_ms, places)
values (:id, :url, :tenant, :types, :kinds, :lanes, :tags, :include_results, :concurrency,
    :per_job, :state, :reason, :created_at_ms, :since_ms, :last_success_at_ms, :failing_since_ms, :closed_until_ms,
    :last_answer, :secrets, :closings, :probe_until_ms, :places)
on conflict (id) do nothing;

-- name: webhook_job_insert
-- Store the URLs of jobs; a job that was replaced gets the new one.
insert into holdfast_webhook_job (job_id, url)
select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(:rows)
 where true
on conflict (job_id) do update set url = excluded.url;

-- name: webhook_job_urls
-- Read the URLs of those of these jobs that have one.
select job_id, url from holdfast_webhook_job where job_id in (select value from json_each(:ids));

-- name: webhook_jobs_after
-- Read some jobs with URLs in order of their ids, and whether each still exists.
select w.job_id, exists (select 1 from holdfast_job j where j.id = w.job_id)
  from holdfast_webhook_job w
 where w.job_id > :after
 order by w.job_id
 limit :limit;

-- name: webhook_jobs_delete
-- Delete the URLs of jobs.
delete from holdfast_webhook_job where job_id in (select value from json_each(:ids));

-- name: webhook_lane_ready
-- Return whether a lane has a ready job.
select exists (
  select 1 from holdfast_route r cross join holdfast_job j on j.route = r.route
   where r.lane = :lane and j.state = {ready}
);

-- name: webhook_places_write
-- Store which processes have places at endpoints.
update holdfast_webhook set places = p.places
  from (select json_extract(value, '$[0]') as id, json_extract(value, '$[1]') as places from json_each(:rows)) p
 where holdfast_webhook.id = p.id;

-- name: webhook_position
-- Read how far the dispatcher has read the log, and which process does until when.
select value from holdfast_meta where name = 'webhook_position';

-- name: webhook_position_write
-- Move the position, unless another process has moved it.
update holdfast_meta set value = :new where name = 'webhook_position' and value = :old;

-- name: webhook_write
-- Store the state and the secrets of a webhook.
update holdfast_webhook
   set state = :state, reason = :reason, since_ms = :since_ms,
       last_success_at_ms = :last_success_at_ms, failing_since_ms = :failing_since_ms,
       closed_until_ms = :closed_until_ms, last_answer = :last_answer,
       secrets = :secrets, closings = :closings, probe_until_ms = :probe_until_ms
 where id = :id;

-- name: webhooks_active
-- Read the active webhooks.
select id, url, tenant, types, kinds, lanes, tags, include_results, concurrency, per_job,
       state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms, last_answer,
       secrets, closings, probe_until_ms, places
  from holdfast_webhook
 where state = 'active';

-- name: webhooks_by_id
-- Read webhooks by their ids.
select id, url, tenant, types, kinds, lanes, tags, include_results, concurrency, per_job,
       state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms, last_answer,
       secrets, closings, probe_until_ms, places
  from holdfast_webhook
 where id in (select value from json_each(:ids));

-- name: webhooks_newest
-- Read the webhooks that were added last.
select id, url, tenant, types, kinds, lanes, tags, include_results, concurrency, per_job,
       state, reason, created_at_ms, since_ms, last_success_at_ms, failing_since_ms, closed_until_ms, last_answer,
       secrets, closings, probe_until_ms, places
  from holdfast_webhook
 where (:tenant is null or tenant = :tenant)
 order by created_at_ms desc, id
 limit :limit;
