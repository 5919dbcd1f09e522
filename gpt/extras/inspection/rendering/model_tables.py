"""The components of a model as a table."""

from gpt.extras.accounting.parameters import ParameterCount
from gpt.extras.inspection.rendering.tables import Table


def component_table(count: ParameterCount, blocks: int) -> Table:
    """Return the parameters of each component, in one block and in all."""
    rows = []
    for part in count.components:
        if part.count or part.name == "head":
            tied = part.name == "head" and count.tied
            each = "" if part.per_block is None else f"{part.per_block:,}"
            rows.append(
                (part.name, each, "0 (tied)" if tied else f"{part.count:,}", f"{part.share:.2f} %")
            )
    share = 100 * count.in_blocks / count.total
    rows.append(
        (
            f"all {blocks} blocks",
            f"{count.in_blocks // blocks:,}",
            f"{count.in_blocks:,}",
            f"{share:.2f} %",
        )
    )
    rows.append(("total", "", f"{count.total:,}", "100.00 %"))
    notes = [
        f"The {blocks} blocks are the sum of the rows with a count per block; the total counts them once."
    ]
    if count.tied:
        notes.append(
            "The head is tied: it multiplies by the token embedding, which is counted once."
        )
    if count.buffers:
        notes.append(
            f"Position tables of {count.buffers:,} numbers are not trained and not counted."
        )
    header = ("component", "in one block", "in all", "share")
    return Table("Parameters by component", header, rows, "<>>>", "\n".join(notes))
