-- Tokens of the HTTP service, and the audit log.

-- name: audit_append
-- Append an action to the audit log.
insert into holdfast_audit (at_ms, actor, action, target, detail)
values (:now, :actor, :action, :target, :detail);

-- name: audit_read
-- Read the audit log below an entry, newest first.
select entry, at_ms, actor, action, target, detail
  from holdfast_audit
 where entry < :before
 order by entry desc
 limit :limit;

-- name: token_expire
-- Let a token expire at a time, unless it expires earlier.
update holdfast_token
   set expires_at_ms = case when expires_at_ms < :at_ms then expires_at_ms else :at_ms end
 where id = :id;

-- name: token_insert
-- Store a new token.
insert into holdfast_token (id, name, hash, tenant, roles, scopes, ceilings, created_at_ms, expires_at_ms)
values (:id, :name, :hash, :tenant, :roles, :scopes, :ceilings, :now, :expires_at_ms);

-- name: token_revoke
-- Revoke a token; an earlier revocation remains.
update holdfast_token set revoked_at_ms = coalesce(revoked_at_ms, :now) where id = :id;

-- name: token_touch
-- Store that a token was used, unless that was stored a short time ago.
update holdfast_token
   set last_used_at_ms = :now
 where id = :id and (last_used_at_ms is null or last_used_at_ms < :before);

-- name: tokens_by_id
-- Read tokens by their ids.
select id, name, hash, tenant, roles, scopes, ceilings, created_at_ms, expires_at_ms, last_used_at_ms, revoked_at_ms
  from holdfast_token
 where id in (select value from json_each(:ids));

-- name: tokens_newest
-- Read the tokens that were created last.
select id, name, hash, tenant, roles, scopes, ceilings, created_at_ms, expires_at_ms, last_used_at_ms, revoked_at_ms
  from holdfast_token
 order by created_at_ms desc, id
 limit :limit;
