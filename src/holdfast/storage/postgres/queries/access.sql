-- Tokens of the HTTP service, and the audit log.

-- name: audit_append
-- Append an action to the audit log.
insert into holdfast.audit (at_ms, actor, action, target, detail)
values (%(now)s, %(actor)s, %(action)s, %(target)s, %(detail)s);

-- name: audit_read
-- Read the audit log below an entry, newest first.
select entry, at_ms, actor, action, target, detail
  from holdfast.audit
 where entry < %(before)s
 order by entry desc
 limit %(limit)s;

-- name: token_expire
-- Let a token expire at a time, unless it expires earlier.
update holdfast.token
   set expires_at_ms = case when expires_at_ms < %(at_ms)s then expires_at_ms else %(at_ms)s end
 where id = %(id)s;

-- name: token_insert
-- Store a new token.
insert into holdfast.token (id, name, hash, tenant, roles, scopes, ceilings, created_at_ms, expires_at_ms)
values (%(id)s, %(name)s, %(hash)s, %(tenant)s, %(roles)s, %(scopes)s, %(ceilings)s, %(now)s, %(expires_at_ms)s);

-- name: token_revoke
-- Revoke a token; an earlier revocation remains.
update holdfast.token set revoked_at_ms = coalesce(revoked_at_ms, %(now)s) where id = %(id)s;

-- name: token_touch
-- Store that a token was used, unless that was stored a short time ago.
update holdfast.token
   set last_used_at_ms = %(now)s
 where id = %(id)s and (last_used_at_ms is null or last_used_at_ms < %(before)s);

-- name: tokens_by_id
-- Read tokens by their ids.
select id, name, hash, tenant, roles, scopes, ceilings, created_at_ms, expires_at_ms, last_used_at_ms, revoked_at_ms
  from holdfast.token
 where id = any(%(ids)s::text[]);

-- name: tokens_newest
-- Read the tokens that were created last.
select id, name, hash, tenant, roles, scopes, ceilings, created_at_ms, expires_at_ms, last_used_at_ms, revoked_at_ms
  from holdfast.token
 order by created_at_ms desc, id
 limit %(limit)s;
