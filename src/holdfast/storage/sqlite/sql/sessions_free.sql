-- Tell which of some sessions nobody else has in hand: all of them, as nobody else can write.
select number from holdfast_session where number in (select value from json_each(:numbers))
