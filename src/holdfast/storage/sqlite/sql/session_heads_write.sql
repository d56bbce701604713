-- Write which head each session offers.
update holdfast_session set head_route = ?, head_class = ?, head_turn = ?, head_seq = ? where number = ?
