"""Shows what the ledger holds. Reads records only; decides and changes nothing."""
