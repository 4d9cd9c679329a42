"""Settings that can bring code into a container of an allowed image: variables, mounts, commands, cached kernels. Pure.

Variables and folders that are known to load code are rejected for the engine unless the operator's options allow them.
With a list of images, all settings that are not known to be harmless are rejected, in all containers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

from ballast_operator.api.pod.container import EnvFrom, EnvVar, Sidecar, VolumeMount
from ballast_operator.api.spec import InferenceServiceSpec
from ballast_operator.limits.allowed import AllowLists, Refusal, is_below, is_of

CODE_VARIABLES = (
    # the dynamic loader and the C library
    *("LD_*", "GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH"),
    # where programs and their settings are found
    *("PATH", "ENV", "BASH_ENV", "SHELLOPTS", "TMPDIR", "TEMP", "TMP", "XDG_*"),
    # interpreters
    *(
        "PYTHON*",
        "VIRTUAL_ENV",
        "PIP_*",
        "NODE_OPTIONS",
        "NODE_PATH",
        "PERL*",
        "RUBY*",
        "LUA_*",
        "*JAVA_*OPTIONS",
        "CLASSPATH",
    ),
    # compilers, which the GPU's kernels need at run time
    *("CC", "CXX", "*FLAGS", "*_INCLUDE_PATH", "CPATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_*", "NVCC_*"),
    # libraries of GPUs, and the plug-ins that they load
    *("CUDA_HOME", "CUDA_PATH", "CUDA_CACHE_PATH", "*INJECTION*", "NCCL_*PLUGIN*", "NCCL_CONF_FILE"),
    *("TRITON*", "TORCHINDUCTOR_*", "TORCH_*DIR*", "TORCH_*PATH*", "TORCH_DEVICE_BACKEND*", "FLASHINFER_*"),
    *("OMP_TOOL*", "OPENSSL_*", "OCL_*"),
)
"""Names, or patterns of them, of variables by which a process loads code or finds programs."""

HARMLESS_VARIABLES = (
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("TZ", "LANG", "LANGUAGE", "LC_*"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MALLOC_ARENA_MAX", "BALLAST_CPU_ISA"),
    *("CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"),
    *("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"),
    *("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
    *("POD_NAME", "POD_NAMESPACE", "POD_IP", "NODE_NAME", "HOST_IP"),
)
"""Names that are allowed with a list of images, too."""

CODE_PATHS = (
    *("/opt/ballast", "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/proc", "/sys"),
    *("/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/python3", "/etc/python3.11", "/etc/python3.12", "/etc/python3.13", "/etc/alternatives"),
    *("/etc/ssl/openssl.cnf", "/etc/nsswitch.conf", "/etc/passwd", "/etc/group", "/etc/OpenCL"),
)
"""Files and folders of the runtime's image from which its programs load code."""

HARMLESS_PATHS = (
    *("/mnt", "/media", "/data", "/srv", "/config", "/logs", "/certs", "/dev/shm"),  # noqa: S108
    *("/etc/certs", "/etc/ssl/certs", "/run/secrets", "/var/run/secrets", "/var/log"),
)
"""Folders below which volumes may be mounted with a list of images, too."""


def code_refusals(spec: InferenceServiceSpec, lists: AllowLists) -> Iterator[Refusal | str]:
    """Everything in the spec that could load code and that no list allows."""
    bounded = bool(lists.images)
    for variable in spec.env:
        if _refuses_variable(variable.name, lists, bounded=bounded):
            yield Refusal("env", variable.name, "--allowed-env", lists.env)
    yield from _mounts("volumeMounts", spec.volume_mounts, lists, bounded=bounded)
    if not bounded:
        return
    yield from _objects("envFrom", spec.env_from, lists)
    for sidecar in spec.sidecars:
        if not any(is_of(sidecar.image, prefix) for prefix in lists.sidecar_images):
            yield from _sidecar(sidecar, lists)
    yield from _kernels(spec, lists)


def _sidecar(sidecar: Sidecar, lists: AllowLists) -> Iterator[Refusal]:
    """A sidecar whose image is allowed, but not among those that may run any command."""
    where = f"sidecars[{sidecar.name}]"
    for field, words in (("command", sidecar.command), ("args", sidecar.args)):
        if words:
            yield Refusal(f"{where}.{field}", " ".join(words)[:80], "--allowed-sidecar-image", lists.sidecar_images)
    yield from _variables(f"{where}.env", sidecar.env, lists)
    yield from _objects(f"{where}.envFrom", sidecar.env_from, lists)
    yield from _mounts(f"{where}.volumeMounts", sidecar.volume_mounts, lists, bounded=True)


def _variables(field: str, variables: Sequence[EnvVar], lists: AllowLists) -> Iterator[Refusal]:
    for variable in variables:
        if _refuses_variable(variable.name, lists, bounded=True):
            yield Refusal(field, variable.name, "--allowed-env", lists.env)


def _refuses_variable(name: str, lists: AllowLists, *, bounded: bool) -> bool:
    if _matches(name, lists.env):
        return False
    return _matches(name, CODE_VARIABLES) or (bounded and not _matches(name, HARMLESS_VARIABLES))


def _objects(field: str, sources: Sequence[EnvFrom], lists: AllowLists) -> Iterator[Refusal]:
    """The keys of an object are not known: a pattern must allow all names that can follow from its prefix."""
    for source in sources:
        prefix = source.prefix or ""
        if not any(pattern.endswith("*") and prefix.startswith(pattern[:-1]) for pattern in lists.env):
            yield Refusal(field, f"{prefix}*", "--allowed-env", lists.env)


def _mounts(field: str, mounts: Sequence[VolumeMount], lists: AllowLists, *, bounded: bool) -> Iterator[Refusal]:
    for mount in mounts:
        path = mount.mount_path
        if is_below(path, lists.mount_paths):
            continue
        if any(is_below(path, (own,)) or is_below(own, (path,)) for own in CODE_PATHS) or (
            bounded and not is_below(path, HARMLESS_PATHS)
        ):
            yield Refusal(field, path, "--allowed-mount-path", lists.mount_paths)


def _kernels(spec: InferenceServiceSpec, lists: AllowLists) -> Iterator[Refusal | str]:
    """Kept kernels are executed: their claim must be one that holds nothing else, and nothing else may write to it."""
    claim = spec.kernel_cache.claim_name if spec.kernel_cache is not None else None
    if claim is not None and claim not in lists.kernel_caches:
        yield Refusal("kernelCache.claimName", claim, "--allowed-kernel-cache", lists.kernel_caches)
    for field, mounted in _claims(spec):
        if mounted in lists.kernel_caches:
            yield (
                f"spec.{field} must not mount {mounted}: its kernels are executed "
                "(--allowed-kernel-cache of the operator), so only kernelCache may mount it"
            )


def _claims(spec: InferenceServiceSpec) -> Iterator[tuple[str, str]]:
    """Every claim that pods mount besides that of kernelCache, with the field that names it."""
    source = spec.model.source
    for volume in spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield f"volumes[{volume.name}]", volume.persistent_volume_claim.claim_name
    if source.pvc is not None:
        yield "model.source.pvc", source.pvc.claim_name
    if source.pulled is not None and source.pulled.pvc is not None:
        yield f"model.source.{source.pulled_field}.pvc", source.pulled.pvc.claim_name
    if spec.packed_weights is not None and spec.packed_weights.pvc is not None:
        yield "packedWeights.pvc", spec.packed_weights.pvc.claim_name
    if spec.kv_disk is not None and spec.kv_disk.claim_name is not None:
        yield "kvDisk.claimName", spec.kv_disk.claim_name


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
