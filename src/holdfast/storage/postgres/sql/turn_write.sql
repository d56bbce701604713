-- Remember which turn was served last in a round. It is a hint: where another worker is just writing it, theirs stands.
with free as (
    select scope from holdfast.turn where scope = %(scope)s for update skip locked
),
moved as (
    update holdfast.turn t set turn = %(turn)s, used_at_ms = %(now)s from free where t.scope = free.scope
)
insert into holdfast.turn (scope, turn, used_at_ms)
select %(scope)s, %(turn)s, %(now)s
 where not exists (select 1 from holdfast.turn where scope = %(scope)s)
on conflict (scope) do nothing
