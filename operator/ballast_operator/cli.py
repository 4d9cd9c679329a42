"""The `ballast-operator` command: runs the operator, or prints the objects that it would create."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import yaml

from ballast_operator.api.inference_service import SpecError
from ballast_operator.child_options import SCRAPER_LABELS, ChildOptions
from ballast_operator.commands import values
from ballast_operator.commands.documents import caches_in, read_documents, services_in
from ballast_operator.commands.install import installation
from ballast_operator.crd import to_yaml
from ballast_operator.definitions import DEFINITIONS
from ballast_operator.desired import rendered
from ballast_operator.errors import ConnectError, InputError
from ballast_operator.limits.allowed import AllowLists
from ballast_operator.limits.quotas import ANY_NAMESPACE, KEYS, Quotas
from ballast_operator.names import (
    FIELD_MANAGER,
    PLURAL,
    Ref,
)
from ballast_operator.process.process_options import ProcessOptions
from ballast_operator.version import __version__

Result = TypeVar("Result")

EXIT_UNHEALTHY = 1
EXIT_BAD_INPUT = 2
EXIT_READER_GONE = 141
"""The code that a shell reports for a program that SIGPIPE ended."""
DEFAULT = "default: %(default)s"
CPU_RUNTIME_IMAGE = f"{ChildOptions().runtime_image}-cpu"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    try:
        try:
            arguments = _parser().parse_args(argv)
            return int(arguments.run(arguments))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has exited; flushing at exit must not fail either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READER_GONE
    except (InputError, ConnectError) as error:
        sys.stderr.write(f"ballast-operator: {error}\n")
        return EXIT_BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ballast-operator", description="The Kubernetes operator of Ballast.")
    commands = parser.add_subparsers(metavar="COMMAND")
    missing = "a command is missing; commands are {}"
    parser.set_defaults(run=lambda _: parser.error(missing.format(", ".join(commands.choices))))

    run = commands.add_parser("run", help="run the operator in the cluster of the pod or of KUBECONFIG")
    _add_child_options(run)
    _add_process_options(run)
    run.set_defaults(run=_run)

    doctor = commands.add_parser("doctor", help="check permissions, definitions and the NUMA policies of the nodes")
    doctor.add_argument(
        "--operator-namespace", default=ChildOptions().operator_namespace, metavar="NAMESPACE", help=DEFAULT
    )
    doctor.add_argument("--service-account", default=FIELD_MANAGER, metavar="NAME", help=DEFAULT)
    _add_namespaces(doctor)
    doctor.set_defaults(run=_doctor)

    for name, text, run_it in (
        ("why", "explain on one screen why a service is not ready; exits with 1 if it is not", _why),
        ("history", "list the earlier specs of an InferenceService", _history),
        ("undo", "restore the previous or an earlier spec of an InferenceService, except replicas and rollout", _undo),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("name", metavar="NAME", type=values.service_name, help="name of the InferenceService")
        command.add_argument(
            "-n",
            "--namespace",
            type=values.namespace,
            metavar="NAMESPACE",
            help="namespace of the InferenceService (default: that of the kubeconfig's current context)",
        )
        command.set_defaults(run=run_it)
        if run_it is _undo:
            command.add_argument("--to-revision", type=int, metavar="N", help="number of the revision (default: last)")

    render = commands.add_parser("render", help="print the children of an InferenceService; needs no cluster")
    render.add_argument("-f", "--filename", required=True, metavar="FILE", help="YAML file, - for standard input")
    _add_child_options(render)
    render.set_defaults(run=_render)

    crd = commands.add_parser("crd", help="print a CustomResourceDefinition")
    crd.add_argument("kind", nargs="?", choices=sorted(DEFINITIONS), default=PLURAL, help=DEFAULT)
    crd.set_defaults(run=_crd)

    install = commands.add_parser("install", help="print the objects that install the operator without the chart")
    for part, image in (("operator", f"ballast-operator:{__version__}"), ("runtime", ChildOptions().runtime_image)):
        install.add_argument(f"--{part}-image", default=image, type=values.image, metavar="IMAGE", help=DEFAULT)
    install.add_argument(
        "--cpu-runtime-image",
        type=values.image,
        metavar="IMAGE",
        help=f"image for services without GPUs (default: {CPU_RUNTIME_IMAGE}, or --runtime-image if that is given)",
    )
    install.set_defaults(run=_install)
    return parser


def _add_child_options(parser: argparse.ArgumentParser) -> None:
    defaults = ChildOptions()
    parser.add_argument(
        "--runtime-image",
        default=defaults.runtime_image,
        type=values.image,
        metavar="IMAGE",
        help="runtime image of services whose spec has none (default: %(default)s)",
    )
    parser.add_argument(
        "--cpu-runtime-image",
        type=values.image,
        metavar="IMAGE",
        help="the same for services without GPUs, without CUDA's libraries (default: the value of --runtime-image)",
    )
    parser.add_argument(
        "--operator-namespace",
        default=os.environ.get("POD_NAMESPACE") or defaults.operator_namespace,
        metavar="NAMESPACE",
        help="namespace of the operator's pods, which network policies admit, and of its Lease (default: "
        "%(default)s, from POD_NAMESPACE if it is set)",
    )
    _add_monitoring_options(parser)
    _add_allow_lists(parser)


def _add_monitoring_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pod-monitor-label",
        action="append",
        default=[],
        type=values.label,
        metavar="KEY=VALUE",
        help="label of every PodMonitor, for Prometheus' selector; can be repeated",
    )
    parser.add_argument(
        "--pod-monitor-interval",
        default=ChildOptions().pod_monitor_interval,
        type=values.prometheus_duration,
        metavar="DURATION",
        help="scrape interval in the PodMonitors (default: %(default)s)",
    )
    parser.add_argument(
        "--scraper-label",
        action="append",
        default=[],
        type=values.label,
        metavar="KEY=VALUE",
        help="label of the scrapers' pods, which network policies of services admit to the admin port; can be "
        f"repeated, all must match (default: {_terms(SCRAPER_LABELS)})",
    )
    parser.add_argument(
        "--scraper-namespace",
        action="append",
        default=[],
        type=values.namespace,
        metavar="NAMESPACE",
        help="namespace of the scrapers' pods; can be repeated (default: any)",
    )


def _add_allow_lists(parser: argparse.ArgumentParser) -> None:
    for option, form, metavar, text in (
        (
            "image",
            values.image_prefix,
            "PREFIX",
            "image that specs may use, or a registry or folder of images (default: any). With this option, "
            "variables, mounts and sidecars that are not known to be harmless are rejected",
        ),
        (
            "host-path",
            values.directory,
            "DIRECTORY",
            "directory of nodes that specs may use as hostPath, with everything below it (default: none)",
        ),
        ("priority-class", str, "NAME", "PriorityClass that specs may use (default: any)"),
        (
            "node-selector",
            values.node_selector,
            "KEY=VALUE,...",
            "labels that the nodeSelector of every spec must contain (default: none)",
        ),
        (
            "env",
            values.variables,
            "NAME",
            "variable that specs may set although it could load code, or a prefix of such names followed by * "
            "(default: none)",
        ),
        (
            "mount-path",
            values.directory,
            "DIRECTORY",
            "folder of containers where specs may mount volumes although programs could load code from it, "
            "with everything below it (default: none)",
        ),
        (
            "sidecar-image",
            values.image_prefix,
            "PREFIX",
            "image whose sidecars may have any command, variables and mounts (default with --allowed-image: none)",
        ),
        (
            "kernel-cache",
            str,
            "CLAIM",
            "claim that specs may use in kernelCache, whose content is executed (default with --allowed-image: none)",
        ),
    ):
        parser.add_argument(
            f"--allowed-{option}",
            action="append",
            default=[],
            type=form,
            metavar=metavar,
            help=f"{text}; can be repeated",
        )


def _add_process_options(parser: argparse.ArgumentParser) -> None:
    defaults = ProcessOptions(identity=os.environ.get("POD_NAME") or socket.gethostname())
    _add_namespaces(parser)
    parser.add_argument(
        "--quota",
        action=values.AddQuota,
        default={},
        type=values.quota,
        metavar="NAMESPACE:KEY=QUANTITY,...",
        help=f"limit for the pods of all services of a namespace together, in {', '.join(KEYS)}, such as "
        f"team-a:gpus=4,memory=2Ti; {ANY_NAMESPACE} is each namespace without a limit of its own; can be repeated "
        "(default: no limits)",
    )
    parser.add_argument(
        "--identity", default=defaults.identity, help="name of this replica (default: POD_NAME, or the host name)"
    )
    parser.add_argument(
        "--lease-name",
        default=defaults.lease_name,
        type=values.lease_name,
        metavar="NAME",
        help="Lease for leader election; with its namespace, it identifies this install (default: %(default)s)",
    )
    parser.add_argument("--health-host", default=defaults.health_host, metavar="HOST", help=DEFAULT)
    parser.add_argument(
        "--health-port",
        type=values.port,
        default=defaults.health_port,
        metavar="PORT",
        help="port of /livez, /readyz and /metrics; 0: any free port, which is logged (default: %(default)s)",
    )
    parser.add_argument(
        "--resync-seconds",
        type=values.resync_interval,
        default=defaults.resync_s,
        metavar="S",
        help="interval of a full resync, independent of watches (default: %(default)s)",
    )
    parser.add_argument(
        "--probe-proxy",
        metavar="URL",
        help="HTTP proxy for requests to pods and Services, for an operator outside the cluster",
    )
    parser.add_argument(
        "--otlp-endpoint",
        type=values.collector_url,
        metavar="URL",
        help="OpenTelemetry collector for spans of the operator's passes, sent as OTLP over HTTP in JSON, usually to "
        "port 4318 (default: no tracing)",
    )
    parser.add_argument(
        "--otlp-service-name",
        default=defaults.otlp_service_name,
        metavar="NAME",
        help=f"value of service.name in the spans; {DEFAULT}",
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help=DEFAULT)
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", help=DEFAULT)


def _add_namespaces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--namespace",
        action="append",
        default=[],
        type=values.namespace,
        metavar="NAMESPACE",
        help="namespace whose services are watched; can be repeated (default: all namespaces)",
    )


def _run(arguments: argparse.Namespace) -> int:
    from ballast_operator.process.log import configure_logging
    from ballast_operator.process.run import run_operator

    configure_logging(arguments.log_format, arguments.log_level)
    process = ProcessOptions(
        identity=arguments.identity,
        lease_namespace=arguments.operator_namespace,
        lease_name=arguments.lease_name,
        namespaces=tuple(arguments.namespace),
        health_host=arguments.health_host,
        health_port=arguments.health_port,
        resync_s=arguments.resync_seconds,
        quotas=Quotas(arguments.quota),
        probe_proxy=arguments.probe_proxy,
        otlp_endpoint=arguments.otlp_endpoint,
        otlp_service_name=arguments.otlp_service_name,
    )
    asyncio.run(run_operator(_child_options(arguments), process))
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    return asyncio.run(_examine(arguments.operator_namespace, arguments.service_account, arguments.namespace))


def _why(arguments: argparse.Namespace) -> int:
    from ballast_operator.commands.why import explain, is_ready, look

    ref = _ref(arguments)
    seen = asyncio.run(_with_api(lambda api: look(api, ref)))
    for line in explain(seen, shutil.get_terminal_size((160, 40)).columns):
        sys.stdout.write(f"{line}\n")
    return 0 if is_ready(seen) else EXIT_UNHEALTHY


async def _examine(namespace: str, account: str, watched: Sequence[str]) -> int:
    from ballast_operator.cluster.api import Api
    from ballast_operator.commands.doctor import examine

    api, failed = Api(), False
    try:
        await api.connect()
        async for finding in examine(api, namespace, account, watched):
            failed = failed or finding.verdict == "FAIL"
            sys.stdout.write(f"{finding.verdict:4}  {finding.text}\n")
    finally:
        await api.close()
    return EXIT_UNHEALTHY if failed else 0


def _history(arguments: argparse.Namespace) -> int:
    from ballast_operator.commands.history import history_lines

    ref = _ref(arguments)
    lines = asyncio.run(_with_api(lambda api: history_lines(api, ref)))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _undo(arguments: argparse.Namespace) -> int:
    from ballast_operator.commands.history import undo

    ref = _ref(arguments)
    number = asyncio.run(_with_api(lambda api: undo(api, ref, arguments.to_revision)))
    sys.stdout.write(f"{ref} has the spec of revision {number} again\n")
    return 0


def _ref(arguments: argparse.Namespace) -> Ref:
    """The service that the arguments name. Raises ConnectError."""
    from ballast_operator.cluster.connect import context_namespace

    return Ref(arguments.namespace or context_namespace(), arguments.name)


async def _with_api(work: Callable[[Any], Awaitable[Result]]) -> Result:
    """The result of `work` with a connected client. Raises ConnectError, and InputError if the server refuses."""
    from ballast_operator.cluster.api import Api, ApiError

    api = Api()
    try:
        await api.connect()
        return await work(api)
    except ApiError as error:
        raise InputError(str(error)) from None
    finally:
        await api.close()


def _terms(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


def _child_options(arguments: argparse.Namespace) -> ChildOptions:
    return ChildOptions(
        runtime_image=arguments.runtime_image,
        cpu_runtime_image=arguments.cpu_runtime_image,
        operator_namespace=arguments.operator_namespace,
        pod_monitor_labels=dict(arguments.pod_monitor_label),
        pod_monitor_interval=arguments.pod_monitor_interval,
        scraper_labels=dict(arguments.scraper_label) or dict(SCRAPER_LABELS),
        scraper_namespaces=tuple(arguments.scraper_namespace),
        allowed=AllowLists(
            images=tuple(arguments.allowed_image),
            host_paths=tuple(arguments.allowed_host_path),
            priority_classes=tuple(arguments.allowed_priority_class),
            node_selectors=tuple(arguments.allowed_node_selector),
            env=tuple(arguments.allowed_env),
            mount_paths=tuple(arguments.allowed_mount_path),
            sidecar_images=tuple(arguments.allowed_sidecar_image),
            kernel_caches=tuple(arguments.allowed_kernel_cache),
        ),
    )


def _render(arguments: argparse.Namespace) -> int:
    children = []
    documents = read_documents(arguments.filename)
    caches = {cache.ref: cache for cache in caches_in(arguments.filename, documents)}
    for service in services_in(arguments.filename, documents):
        try:
            children += rendered(service, _child_options(arguments), caches)
        except SpecError as error:
            raise InputError(f"{arguments.filename}: {service.ref.name}: {error}") from None
    _print_all(children)
    return 0


def _install(arguments: argparse.Namespace) -> int:
    sys.stdout.write(
        "# Made by `ballast-operator install`; the definitions are in charts/ballast/files/crd. For images of\n"
        "# a registry, run: ballast-operator install --operator-image IMAGE --runtime-image IMAGE\n"
    )
    own = CPU_RUNTIME_IMAGE if arguments.runtime_image == ChildOptions().runtime_image else None
    _print_all(installation(arguments.operator_image, arguments.runtime_image, arguments.cpu_runtime_image or own))
    return 0


def _print_all(objects: list[dict[str, Any]]) -> None:
    yaml.dump_all(objects, sys.stdout, _PlainDumper, sort_keys=False, width=120, allow_unicode=True)


class _PlainDumper(yaml.SafeDumper):
    """Writes no YAML aliases, which are hard to read for people and some tools."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _crd(arguments: argparse.Namespace) -> int:
    sys.stdout.write(to_yaml(DEFINITIONS[arguments.kind]()))
    return 0
