"""The command `sample advising`: stores fictional data to try the bundled team with."""

from typing import Annotated

import typer

from turnlog.agent.counting import counted
from turnlog.agent.team import samples
from turnlog.consumers.cli.console import Result
from turnlog.consumers.cli.options import commands, group
from turnlog.consumers.cli.runner import Runtime, command

app = commands()
below = group(app, "sample", "Store fictional data to try a team with.")


@command(below)
async def advising(
    rt: Runtime,
    user: Annotated[str, typer.Option("--user", "-u", help="User who gets the profile and essays.")],
    applicant: Annotated[str | None, typer.Option(help="Id of the sample applicant, such as sample-2.")] = None,
) -> Result:
    """Store a sample applicant's profile, essays and assessments as a user's, for the team `advising`."""
    loaded = await samples.load_applicant(rt, rt.settings.tenant, user, applicant)
    essays, assessments = counted(loaded.essays, "essay"), counted(loaded.assessments, "assessment")
    stored = f"profile, {essays} and {assessments} of {loaded.name}"
    return Result(loaded, f"{user} has the {stored} now ({loaded.note})")
