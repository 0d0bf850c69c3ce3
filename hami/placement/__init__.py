"""State: inventory, ledger, columns, engine and bind."""
