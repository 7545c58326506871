"""RL's records of a job: its rollouts, what became of them, and what is owed for them.

Begin with `rl.records.recovery_ledger`; `rl.records.inventories` compares it with the servers, and
`rl.records.snapshot_part` writes the records into a snapshot.
"""
