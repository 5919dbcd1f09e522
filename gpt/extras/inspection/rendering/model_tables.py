"""The components of a model as a table."""

from gpt.extras.accounting.parameters import ParameterCount
from gpt.extras.inspection.rendering.tables import Table


def component_table(count: ParameterCount, n_layer: int) -> Table:
    """Return the parameters of each component, in one block and in all."""
    rows = []
    for part in count.components:
        is_head = part.name == "head"
        if part.count == 0 and not is_head:  # without biases, for example
            continue
        in_one_block = "" if part.per_block is None else f"{part.per_block:,}"
        in_all = "0 (tied)" if is_head and count.tied else f"{part.count:,}"
        rows.append((part.name, in_one_block, in_all, f"{part.share:.2f} %"))
    in_one_block = f"{count.in_blocks // n_layer:,}"
    share = 100 * count.in_blocks / count.total
    rows.append((f"all {n_layer} blocks", in_one_block, f"{count.in_blocks:,}", f"{share:.2f} %"))
    rows.append(("total", "", f"{count.total:,}", "100.00 %"))

    notes = [
        f"The {n_layer} blocks are the sum of the rows with a count per block; "
        "the total counts them once."
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
