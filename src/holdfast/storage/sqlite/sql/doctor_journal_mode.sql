-- Tell how the journal is kept.
pragma journal_mode
