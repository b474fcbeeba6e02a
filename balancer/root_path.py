"""One prefix for everything, behind a proxy that keeps it in the path or strips it."""

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Tell the application its prefix; a path without it is one whose prefix was stripped.

    So whoever asks the balancer itself, as a probe does, needs no prefix either.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self.root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        root, path = self.root_path, scope["path"]
        if path == root:
            # Relative addresses on the page need the slash.
            await RedirectResponse(f"{root}/", status_code=307)(scope, receive, send)
            return
        if not path.startswith(f"{root}/"):
            raw = scope.get("raw_path") or path.encode()
            scope = {**scope, "path": root + path, "raw_path": root.encode() + raw}
        await self.app({**scope, "root_path": root}, receive, send)
