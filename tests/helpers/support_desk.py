"""Tools of the example team in tests/teams/support: a bicycle shop's orders, articles and refunds."""

from typing import Annotated, Any

from pydantic import Field

from turnlog.agent.team.tools import Mistake, Use, tool

ORDERS: dict[str, dict[str, Any]] = {
    "A100": {"item": "bell", "usd": 9, "state": "delivered"},
    "A101": {"item": "blue bicycle", "usd": 640, "state": "on its way"},
}
ARTICLES = {"flat tyre": "Take the wheel out, then the tube.", "returns": "Within 30 days, unused."}


@tool
def find_order(number: Annotated[str, Field(pattern=r"^A\d{3}$")]) -> dict[str, Any]:
    """Returns an order by its number."""
    if number not in ORDERS:
        raise Mistake(f"there is no order {number}")
    return ORDERS[number]


@tool
def search_articles(words: str) -> list[str]:
    """Returns help articles whose title has one of the words."""
    return [text for title, text in ARTICLES.items() if set(words.lower().split()) & set(title.split())]


@tool(retries=0, writes=True)
async def refund_order(use: Use, number: str, usd: Annotated[float, Field(gt=0)]) -> dict[str, Any]:
    """Refunds an amount of an order, once."""
    order = find_order(number)
    if usd > order["usd"]:
        raise Mistake(f"the order cost {order['usd']} USD; no more can be refunded")
    await use.records.put("refunds", number, {"usd": usd}, use.effect)
    return {"number": number, "refunded_usd": usd}


SUPPORT_TOOLS = (find_order, search_articles, refund_order)
