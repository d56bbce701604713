-- Read what was added to the boot-time clock, and in which boot.
select value from holdfast_meta where name = 'lease_clock'
