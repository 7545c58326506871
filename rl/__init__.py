"""The RL side: controller, NemoGym actor, records, TransferQueue and the snapshot folder.

Begin with `rl.controller` and `rl.messages`, what the actors are asked and answer. Importing this
package imports neither Ray nor torch; the modules that need them do.
"""
