-- Write the place of each session's newest batch.
update holdfast_session set enqueue_seq = ? where number = ?
