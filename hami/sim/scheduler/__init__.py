"""kube-scheduler stand-in: queues, node checks, extender calls and binding of kube-scheduler 1.34's default profile."""

from hami.sim.scheduler.config import ExtenderConfig, SchedulerConfig
from hami.sim.scheduler.scheduler import Scheduler

__all__ = ["ExtenderConfig", "Scheduler", "SchedulerConfig"]
