"""What do the same columns give without a graph? Gradient boosting, as the row to beat.

Run: python examples/fraud/boosting.py data/fraud [--scores DIRECTORY]

Learns from customers.csv with scikit-learn, then scores the customers of new/ that joined since;
average precision is by new/found_later.csv. With `--with-sums` it is also given what a person would
compute of the transactions: how many, how much, by which channel. `--scores` adds the row of
predictions that `siafu infer` wrote.
"""

import argparse
from pathlib import Path

import pandas as pd
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import average_precision_score

CATEGORIES = ["country", "segment", "verified"]


def columns_of(folder: Path, *, with_sums: bool) -> pd.DataFrame:
    """Return the customers of a folder, by id, in columns that scikit-learn takes."""
    table = pd.read_csv(folder / "customers.csv", dtype={"customer": str}).set_index("customer")
    table["joined"] = (pd.to_datetime(table["joined"]) - pd.Timestamp("2020-01-01")).dt.days
    table[CATEGORIES] = table[CATEGORIES].astype("category")
    return table.join(sums_of(folder)) if with_sums else table


def sums_of(folder: Path) -> pd.DataFrame:
    """Return what each customer paid and was paid: counts, sums, means and shares of channels."""
    paid = pd.read_csv(folder / "transactions.csv", dtype={"from": str, "to": str})
    paid = paid.join(pd.get_dummies(paid["channel"], dtype=float))
    numbers = ["amount", *sorted(paid["channel"].dropna().unique())]
    sides = []
    for side in ("from", "to"):
        groups = paid.groupby(side)
        sides.append(groups[numbers].mean().add_prefix(f"{side} mean "))
        sides.append(groups["amount"].agg(["count", "sum", "max"]).add_prefix(f"{side} "))
    return pd.concat(sides, axis=1)


def main() -> None:
    """Print average precision on the customers who joined since."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--with-sums", action="store_true")
    parser.add_argument("--scores", type=Path, help="what `siafu infer --out` wrote")
    told = parser.parse_args()
    found = pd.read_csv(told.folder / "new" / "found_later.csv", dtype={"customer": str})
    is_fraud = found.set_index("customer")["is_fraud"]
    known = columns_of(told.folder, with_sums=told.with_sums).dropna(subset="is_fraud")
    asked = columns_of(told.folder / "new", with_sums=told.with_sums).loc[is_fraud.index]
    names = [name for name in known.columns if name != "is_fraud"]
    model = HistGradientBoostingClassifier(categorical_features=CATEGORIES, random_state=0)
    model.fit(known[names], known["is_fraud"])
    score = average_precision_score(is_fraud, model.predict_proba(asked[names])[:, 1])
    print(f"gradient boosting        {100 * score:5.1f} % average precision")
    if told.scores:
        ours = pd.read_parquet(told.scores).set_index("id")["p(1)"]
        score = average_precision_score(is_fraud, ours.loc[is_fraud.index])
        print(f"siafu                    {100 * score:5.1f} % average precision")
    print(f"a draw by lot            {100 * is_fraud.mean():5.1f} %")


if __name__ == "__main__":
    main()
