from devkit.models import cpu_platform as cpu_platform  # what is on the CPU has a platform
