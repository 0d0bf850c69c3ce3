"""A literal, slow reference of HAMi's scheduling: the oracle that `hami.placement` is compared with.

Written from the behavioural specification alone, by someone who had read neither `hami.core` nor `hami.placement`.
It imports nothing from `hami`, keeps no state, and rebuilds everything from raw API objects on each call.
"""
