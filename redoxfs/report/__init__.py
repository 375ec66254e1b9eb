"""`redoxfs report`: one page of HTML from histories of mounts and tables of figures.

Data in, HTML out: nothing here reads a file or a clock. All text that comes from outside is escaped in `html`.

``inputs``   recognizes JSON
``charts``   draws: SVG and HTML, readable without JavaScript, at any width
``mounts``   the charts of a mount, of its laps, and of several mounts
``page``     puts it together; each page starts with ``BEGIN``
"""

from redoxfs.report.inputs import Figures, Input, MountRun, UnknownInputError, recognized
from redoxfs.report.page import BEGIN, page
from redoxfs.report.words import judged

__all__ = ["BEGIN", "Figures", "Input", "MountRun", "UnknownInputError", "judged", "page", "recognized"]
