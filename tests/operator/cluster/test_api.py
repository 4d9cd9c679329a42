"""Requests while credentials are rejected and replaced, against a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from kubeconfig import write_credentials

from ballast_operator.cluster.api import Api, ApiError
from ballast_operator.cluster.kinds import POD
from ballast_operator.errors import ConnectError

Answer = Callable[[web.Request], Awaitable[web.Response]]


EMPTY = {"items": [], "metadata": {}}


REFUSAL = {"message": "Unauthorized"}


async def serve(answer: Answer) -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, runner.addresses[0][1]


def take_away(path: Path) -> None:
    path.unlink()


def test_a_rejected_request_does_not_affect_concurrent_requests(credentials: Path) -> None:
    async def scene() -> list[object]:
        refused, others = asyncio.Event(), asyncio.Event()
        arrived = 0

        async def answer(request: web.Request) -> web.Response:
            nonlocal arrived
            arrived += 1
            if arrived == 1:
                await others.wait()
                refused.set()
                return web.json_response(REFUSAL, status=401)
            if arrived == 6:
                others.set()
            if arrived == 7:  # the first request's second attempt: its old connection has been closed
                return web.json_response(EMPTY)
            await refused.wait()
            await asyncio.sleep(0.1)
            return web.json_response(EMPTY)

        runner, port = await serve(answer)
        write_credentials(credentials, port, "one")
        api = Api()
        try:
            return await asyncio.gather(*(api.list_all(POD) for _ in range(6)), return_exceptions=True)
        finally:
            await api.close()
            await runner.cleanup()

    assert asyncio.run(scene()) == [[]] * 6


def test_a_replaced_token_is_used_after_the_old_one_is_rejected(credentials: Path) -> None:
    async def scene() -> None:
        valid = "one"

        async def answer(request: web.Request) -> web.Response:
            good = request.headers["Authorization"] == f"Bearer {valid}"
            return web.json_response(EMPTY if good else REFUSAL, status=200 if good else 401)

        runner, port = await serve(answer)
        write_credentials(credentials, port, "one")
        api = Api()
        try:
            assert await api.list_all(POD) == []
            valid = "two"
            with pytest.raises(ApiError, match="HTTP 401: Unauthorized"):
                await api.list_all(POD)
            write_credentials(credentials, port, "two")
            assert await api.list_all(POD) == []
            take_away(credentials)
            valid = "three"
            with pytest.raises(ApiError, match="set KUBECONFIG"):
                await api.list_all(POD)
        finally:
            await api.close()
            await runner.cleanup()

    asyncio.run(scene())


def test_missing_credentials_are_reported_with_the_variables_to_set(credentials: Path) -> None:
    with pytest.raises(ConnectError, match=f"{credentials.name}: there is no such file; set KUBECONFIG"):
        asyncio.run(Api().connect())


def test_schemas_are_read_again_only_if_the_cluster_publishes_others(credentials: Path) -> None:
    requested, marks = [], ["1", "1", "2"]

    async def answer(request: web.Request) -> web.Response:
        requested.append(str(request.rel_url))
        if request.path == "/openapi/v3":
            url = f"/openapi/v3/apis/serving.ballast.dev/v1alpha1?hash={marks.pop(0)}"
            return web.json_response({"paths": {"apis/serving.ballast.dev/v1alpha1": {"serverRelativeURL": url}}})
        kind = {"group": "serving.ballast.dev", "version": "v1alpha1", "kind": "InferenceService"}
        others = {"group": "", "version": "v1", "kind": "DeleteOptions"}
        schema = {"x-kubernetes-group-version-kind": [kind], "title": request.query["hash"]}
        schemas = {"a": schema, "b": {"x-kubernetes-group-version-kind": [others]}, "c": {}}
        return web.json_response({"components": {"schemas": schemas}})

    async def scene() -> list[object]:
        runner, port = await serve(answer)
        write_credentials(credentials, port, "one")
        api = Api()
        try:
            return [await api.schemas("serving.ballast.dev/v1alpha1") for _ in range(3)]
        finally:
            await api.close()
            await runner.cleanup()

    found = asyncio.run(scene())
    assert [{kind: schema["title"] for kind, schema in each.items()} for each in found] == [
        {"InferenceService": "1"},
        {"InferenceService": "1"},
        {"InferenceService": "2"},
    ]
    assert [url.rpartition("?")[2] for url in requested if "?" in url] == ["hash=1", "hash=2"]
