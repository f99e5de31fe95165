"""The server's page in headless Chromium."""

import os
import threading

import adbc_driver_manager
import pytest
from serving import PATIENCE, execute, rows

@pytest.fixture(params=["light", "dark"])
def page(browser, server, request):
    page = browser.new_page(color_scheme=request.param, viewport={"width": 1200, "height": 800})
    page.set_default_timeout(1000 * PATIENCE)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("requestfailed", lambda failed: problems.append(failed.url))
    page.goto(server.page)
    yield page
    if folder := os.environ.get("FLASHMESH_SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{request.node.name}.png")
    page.close()
    assert problems == []


def query_row(page, text: str):
    """The row of the newest query with this text."""
    return page.locator("tr.query", has_text=text).first


def test_a_recent_query_and_its_plan(page, connection, table):
    execute(connection, f"CREATE TABLE {table} AS SELECT value AS id, 'row ' || value AS name FROM generate_series(1, 200000) AS s(value)")
    sql = f"SELECT count(*) AS n FROM {table} WHERE id > 190000 AND length(reverse(name)) > 3"
    rows(connection, sql)
    row = query_row(page, sql)
    row.locator(".state", has_text="finished").wait_for()
    assert row.locator(".user").inner_text() == "anonymous"
    plan = page.locator("tr.detail", has_text="FlashScanExec")
    assert plan.count() == 0
    row.locator("button.open").click()
    plan.wait_for()
    assert row.locator("button.open").get_attribute("aria-expanded") == "true"
    assert "id > 190000" in plan.locator(".pushed").first.inner_text()
    assert "reverse" in plan.locator(".not-pushed").first.inner_text()
    # A tree: the scan stands below what takes its rows, each with what it did.
    operators = plan.locator("table.operators tbody tr")
    names = operators.locator("b").all_inner_texts()
    assert len(names) == operators.count() > 1 and names[-1] == "FlashScanExec"
    indents = [float(row.locator("td").first.evaluate("cell => cell.style.paddingLeft").removesuffix("rem")) for row in operators.all()]
    assert indents[0] == 0 and indents == sorted(set(indents))
    scan = operators.last
    assert "B" in scan.locator("[data-name='from flash']").inner_text()
    assert "B" in scan.locator("[data-name='to host']").inner_text()
    # Operators above it count their time.
    assert any("s" in text for text in operators.locator("[data-name='time']").all_inner_texts())
    assert operators.first.locator("[data-name='rows']").inner_text() == "1"
    # It stays open while the page is refreshed, and is closed by the keyboard as by the mouse.
    with page.expect_response("**/api/queries"):
        pass
    assert plan.is_visible()
    row.locator("button.open").press("Enter")
    plan.wait_for(state="detached")


def test_a_failed_query_shows_why(page, connection, table):
    with pytest.raises(adbc_driver_manager.Error):
        rows(connection, f"SELECT 1 / x AS {table} FROM (VALUES (0)) AS t(x)")
    row = query_row(page, table)
    row.locator(".state", has_text="failed").wait_for()
    assert "ivide" in row.locator(".error").inner_text()
    # So does one that can't even be planned.
    with pytest.raises(adbc_driver_manager.Error):
        rows(connection, f"SELECT missing FROM {table}_missing")
    row = query_row(page, f"{table}_missing")
    row.locator(".state", has_text="failed").wait_for()
    assert f"{table}_missing" in row.locator(".error").inner_text()


def test_cancel_ends_a_running_query(page, server, connection, table):
    execute(connection, f"CREATE TABLE {table} AS SELECT value AS x FROM generate_series(1, 100000) AS s(value)")
    # Reads the table and then looks at pairs for ever.
    endless = f"SELECT count(*) FROM {table}, generate_series(1, 100000000000) AS b(y) WHERE x * y < 0"
    raised = []
    with server.connect() as connection, connection.cursor() as cursor:

        def run() -> None:
            try:
                cursor.execute(endless)
                cursor.fetchall()
            except adbc_driver_manager.Error as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            row = query_row(page, endless)
            row.locator(".state", has_text="running 100 %").wait_for()
            row.get_by_role("button", name="Cancel query").click()
            row.locator(".state", has_text="cancelled").wait_for()
        finally:
            cursor.adbc_cancel()
            thread.join(PATIENCE)
    assert len(raised) == 1
    assert server.query(endless)["state"] == "cancelled"
    assert row.get_by_role("button", name="Cancel query").count() == 0


def test_sql_is_shown_as_text(page, connection, table):
    sql = f"SELECT '<img src=x onerror=alert(1)><b id={table}>' AS html"
    rows(connection, sql)
    query_row(page, table).wait_for()
    assert page.locator(f"#{table}").count() == 0


def test_the_page_says_when_the_server_is_gone(browser, start):
    server = start()
    page = browser.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(server.page)
    page.get_by_text("No queries yet").wait_for()
    server.stop()
    page.get_by_text("the server does not answer").wait_for()
    page.close()
    server.start()


def test_all_columns_fit_a_phone(browser, server, connection, table):
    rows(connection, f"SELECT 1 AS {table}")
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(server.page)
    query_row(page, table).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
