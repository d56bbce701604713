-- Put jobs into the turn their lane's order wants, one for each row of values.
update holdfast_job set turn = ? where seq = ?
