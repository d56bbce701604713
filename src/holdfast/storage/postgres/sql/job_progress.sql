-- Write what a running job says of itself.
update holdfast.job set phase = %(phase)s, percent = %(percent)s where seq = %(seq)s and epoch = %(epoch)s
