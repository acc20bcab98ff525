"""Serves the web page: static files of consumers/page, under /page."""

from pathlib import Path

from starlette.applications import Starlette
from starlette.responses import RedirectResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

FOLDER = Path(__file__).resolve().parent.parent / "page"  # by path, because an editable install maps only modules
# The policy: nothing is loaded from other servers, the HTML has no inline script or style, and other pages may not
# frame this one.
HEADERS = {
    b"content-security-policy": b"default-src 'self'; object-src 'none'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-cache",  # revalidated by its ETag, so that browsers load a new version at once
}


class PageFiles(StaticFiles):
    """The page's files, with headers that protect it from the texts it shows."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS.items()]
            await send(message)

        await super().__call__(scope, receive, with_headers)


def mount_page(app: Starlette) -> None:
    """Adds the page to an application; its root redirects there."""
    app.router.routes.append(Route("/", lambda _: RedirectResponse("/page/"), include_in_schema=False))
    app.router.routes.append(Mount("/page", PageFiles(directory=FOLDER, html=True)))
