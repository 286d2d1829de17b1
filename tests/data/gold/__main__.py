"""``python -m tests.data.gold`` writes the right answers into the case files."""

import json

from tests.data.gold.answers import ANSWERS, FILES, load


def main() -> None:
    """Give every case that has a right answer its ``gold_answer``; one case a line."""
    for name, path in FILES.items():
        lines = []
        for case in load(name):
            gold = ANSWERS[name].get(case["id"])
            case.pop("gold_answer", None)
            known = case if gold is None else {**case, "gold_answer": gold}
            lines.append("  " + json.dumps(known, ensure_ascii=False))
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


main()
