"""Values that could load code into a container are rejected: always, or if images are listed."""

import pytest
from builders import service

from ballast_operator.limits.allowed import AllowLists
from ballast_operator.limits.refusals import why_not_allowed

ANY_IMAGE, LISTED = AllowLists(), AllowLists(images=("r.test/team",))
VOLUME = {"volumes": [{"name": "v", "configMap": {"name": "v"}}]}
SIDECAR = {"name": "log", "image": "r.test/team/log:1", "cpu": "100m", "memory": "64Mi"}
CODE_VARIABLES = [
    *(
        "LD_PRELOAD",
        "LD_AUDIT",
        "LD_LIBRARY_PATH",
        "LD_DEBUG_OUTPUT",
        "GLIBC_TUNABLES",
        "GCONV_PATH",
        "PATH",
        "BASH_ENV",
    ),
    *("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE", "PYTHONINSPECT", "PYTHONPLATLIBDIR"),
    *("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "CUDA_HOME", "CUDA_CACHE_PATH", "OMP_TOOL_LIBRARIES"),
    *(
        "NCCL_NET_PLUGIN",
        "NCCL_TUNER_PLUGIN",
        "NCCL_PROFILER_PLUGIN",
        "NCCL_CONF_FILE",
        "OPENSSL_CONF",
        "OCL_ICD_VENDORS",
    ),
    *("TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH", "TRITON_DUMP_DIR", "TORCHINDUCTOR_CACHE_DIR", "TORCH_EXTENSIONS_DIR"),
    *("FLASHINFER_EXTRA_LDFLAGS", "CC", "CFLAGS", "LDFLAGS", "C_INCLUDE_PATH", "LIBRARY_PATH", "TMPDIR"),
    *("XDG_CACHE_HOME", "JAVA_TOOL_OPTIONS", "NODE_OPTIONS", "PERL5LIB"),
]


def env(name, **source):
    return {"env": [{"name": name, **(source or {"value": "/x"})}]}


def mount(path, **more):
    return {**VOLUME, "volumeMounts": [{"name": "v", "mountPath": path, **more}]}


def refusal(lists, **spec):
    return why_not_allowed(service(**spec).spec, lists)


@pytest.mark.parametrize("name", CODE_VARIABLES)
def test_a_variable_that_loads_code_is_rejected_unless_it_is_listed(name):
    message = f"spec.env {name} is not allowed: --allowed-env of the operator allows none"
    reference = {"valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}
    for lists in (ANY_IMAGE, LISTED):
        assert refusal(lists, **env(name)) == message
        assert refusal(lists, **env(name, **reference)) == message
    for allowed in (name, f"{name[:3]}*" if len(name) > 3 else name, "*"):
        assert refusal(AllowLists(images=LISTED.images, env=("OTHER", allowed)), **env(name)) is None


@pytest.mark.parametrize(
    "name",
    ["HTTPS_PROXY", "no_proxy", "TZ", "LC_ALL", "SSL_CERT_FILE", "OMP_NUM_THREADS", "NODE_NAME", "BALLAST_CPU_ISA"],
)
def test_a_harmless_variable_needs_no_list(name):
    assert refusal(LISTED, **env(name)) is None
    assert refusal(LISTED, sidecars=[{**SIDECAR, **env(name)}]) is None


def test_an_unknown_variable_is_rejected_if_images_are_listed():
    assert refusal(ANY_IMAGE, **env("SITE")) is None
    assert "spec.env SITE is not allowed" in refusal(LISTED, **env("SITE"))
    assert refusal(AllowLists(images=LISTED.images, env=("SITE",)), **env("SITE")) is None


@pytest.mark.parametrize(
    ("prefix", "patterns", "allowed"),
    [
        (None, (), False),
        (None, ("SITE_*", "SITE_A"), False),
        (None, ("*",), True),
        ("SITE_", ("SITE_*",), True),
        ("SITE_A_", ("SITE_*",), True),
        ("SITE", ("SITE_*",), False),
        ("SITE_", ("SITE_",), False),
        ("LD_", ("SITE_*",), False),
    ],
)
def test_object_keys_are_rejected_unless_all_names_of_their_prefix_are_listed(prefix, patterns, allowed):
    source = {"configMapRef": {"name": "x"}, **({"prefix": prefix} if prefix else {})}
    lists = AllowLists(images=LISTED.images, env=patterns)
    for spec in ({"envFrom": [source]}, {"sidecars": [{**SIDECAR, "envFrom": [source]}]}):
        assert (refusal(lists, **spec) is None) == allowed
    assert refusal(ANY_IMAGE, envFrom=[source]) is None


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/opt/ballast",
            "/opt",
            "/opt/ballast/lib/python3.11/site-packages/sitecustomize.py",
            "/usr",
            "/usr/local/bin",
        ),
        *("/usr/lib/python3", "/lib", "/lib64", "/lib/x86_64-linux-gnu/libc.so.6", "/bin", "/sbin"),
        *("/etc/ld.so.preload", "/etc/ld.so.conf.d", "/etc/ld.so.conf.d/x.conf", "/etc/ssl", "/etc/ssl/openssl.cnf"),
        *("/etc/python3", "/etc/passwd", "/proc/self", "/sys/x"),
    ],
)
def test_a_mount_over_programs_is_rejected_unless_it_is_listed(path):
    message = f"spec.volumeMounts {path} is not allowed: --allowed-mount-path of the operator allows none"
    for lists in (ANY_IMAGE, LISTED):
        assert refusal(lists, **mount(path)) == message
        assert refusal(lists, **mount(path, subPath="x", readOnly=True)) == message
    assert refusal(AllowLists(mount_paths=(path,)), **mount(path)) is None


def test_an_unknown_mount_path_is_rejected_if_images_are_listed():
    for path in ("/app", "/srvx", "/etc/site", "/home/x", "/dev/x"):
        assert refusal(ANY_IMAGE, **mount(path)) is None
        assert f"spec.volumeMounts {path} is not allowed" in refusal(LISTED, **mount(path))
        assert refusal(AllowLists(images=LISTED.images, mount_paths=(path,)), **mount(f"{path}/below")) is None
    for path in ("/data", "/mnt/x", "/etc/ssl/certs", "/etc/certs", "/dev/shm"):
        assert refusal(LISTED, **mount(path)) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"command": ["sh", "-c", "x"]}, "command sh -c x"),
        ({"args": ["-c", "x"]}, "args -c x"),
        (env("PYTHONPATH"), "env PYTHONPATH"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/usr/bin"}]}, "volumeMounts /usr/bin"),
    ],
)
def test_a_sidecar_with_a_listed_image_runs_the_images_command(change, field):
    spec = {**VOLUME, "sidecars": [{**SIDECAR, **change}]}
    assert refusal(ANY_IMAGE, **spec) is None
    assert f"spec.sidecars[log].{field} is not allowed" in refusal(LISTED, **spec)
    assert refusal(LISTED, sidecars=[SIDECAR]) is None
    for free in ("r.test/team/log", "r.test/team/log:1"):
        assert refusal(AllowLists(images=LISTED.images, sidecar_images=(free,)), **spec) is None


def test_a_sidecar_image_is_not_allowed_for_engines():
    lists = AllowLists(images=("r.test/team/runtime",), sidecar_images=("r.test/team/log",))
    assert refusal(lists, sidecars=[SIDECAR]) is None
    assert "spec.image r.test/team/log:1 is not allowed" in refusal(lists, image="r.test/team/log:1")


def test_cached_kernels_need_a_listed_claim_that_nothing_else_mounts():
    kernels = {"kernelCache": {"claimName": "kernels"}}
    assert refusal(ANY_IMAGE, **kernels) is None
    assert "spec.kernelCache.claimName kernels is not allowed" in refusal(LISTED, **kernels)
    lists = AllowLists(images=LISTED.images, kernel_caches=("kernels",))
    assert refusal(lists, **kernels) is None
    claim = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "kernels"}}]}
    assert "spec.volumes[v] must not mount kernels" in refusal(lists, **claim)


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("model.source.pvc", {"model": {"ggufPath": ".", "source": {"pvc": {"claimName": "kernels"}}}}),
        (
            "model.source.huggingFace.pvc",
            {"model": {"source": {"huggingFace": {"repo": "a/b", "quant": "Q8_0", "pvc": {"claimName": "kernels"}}}}},
        ),
        ("model.source.s3.pvc", {"model": {"source": {"s3": {"bucket": "abc", "pvc": {"claimName": "kernels"}}}}}),
        (
            "model.source.oci.pvc",
            {"model": {"source": {"oci": {"reference": "a.test/b:1", "pvc": {"claimName": "kernels"}}}}},
        ),
        ("packedWeights.pvc", {"packedWeights": {"pvc": {"claimName": "kernels"}}}),
        ("kvDisk.claimName", {"kvDisk": {"claimName": "kernels", "size": "1Gi"}}),
    ],
)
def test_no_other_field_mounts_a_claim_of_kernels(field, spec):
    lists = AllowLists(images=LISTED.images, kernel_caches=("kernels",))
    assert f"spec.{field} must not mount kernels" in refusal(lists, **spec)
