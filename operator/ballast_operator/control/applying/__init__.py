"""What is written: children, pods and events. The control loop writes them nowhere else."""
