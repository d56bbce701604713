-- Remember what is added to the boot-time clock in this boot.
insert into holdfast_meta (name, value) values ('lease_clock', :value)
on conflict (name) do update set value = excluded.value
