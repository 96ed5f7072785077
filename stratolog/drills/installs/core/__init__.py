"""From what lies on a disk to the stage of an install, and what a kill at a stage may leave. Pure."""
