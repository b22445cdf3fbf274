"""Books for tests: EPUB files made anew, and Project Gutenberg's texts around a text."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zipfile import ZIP_DEFLATED, ZipFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="OEBPS/book.opf" media-type="application/oebps-package+xml"/>
</rootfiles></container>"""

PACKAGE = """<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{metadata}</metadata>
<manifest>{items}</manifest><spine>{spine}</spine></package>"""

METADATA = """<dc:identifier id="id">urn:uuid:1234</dc:identifier>
<dc:identifier>urn:isbn:978-0-306-40615-7</dc:identifier>
<dc:title>The  Title</dc:title><dc:creator>One Author</dc:creator><dc:creator>Two</dc:creator>"""

HEADER = """The Project Gutenberg eBook of The Raven Book, by Edgar A. Poe

This eBook is for the use of anyone anywhere at no cost.

Title: The Raven Book
       and Other Poems

Author: Edgar A. Poe

Release Date: March 1, 2001 [eBook #42]

*** START OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK,
AND OTHER POEMS ***

Produced by Jane Doe and the
Distributed Proofreaders

"""

LICENCE = """

End of Project Gutenberg's The Raven Book, by Edgar A. Poe

*** END OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK ***

Updated editions will replace the previous one.
"""


def page(body: str, head: str = "") -> str:
    """An XHTML page as an EPUB holds it."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<!DOCTYPE html>\n'
        f'<html xmlns="http://www.w3.org/1999/xhtml"><head>{head}</head><body>{body}</body></html>'
    )


def write_epub(
    path: Path,
    pages: Mapping[str, str],
    *,
    spine: Sequence[str] | None = None,
    metadata: str = METADATA,
    further: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write an EPUB whose pages have their names as identifiers; ``further`` files win."""
    items = "".join(
        f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"/>' for name in pages
    )
    order = "".join(f'<itemref idref="{name}"/>' for name in spine or pages)
    files = {
        "mimetype": "application/epub+zip",
        "META-INF/container.xml": CONTAINER,
        "OEBPS/book.opf": PACKAGE.format(metadata=metadata, items=items, spine=order),
        **{f"OEBPS/{name}": content for name, content in pages.items()},
        **(further or {}),
    }
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


BODY_OF_LICENCE = """Section 1.  General Terms of Use and Redistributing Project Gutenberg-tm
electronic works

1.A.  By reading or using any part of this Project Gutenberg-tm
electronic work, you indicate that you have read, understand, agree to
and accept all the terms of this license and intellectual property
(trademark/copyright) agreement.  If you do not agree to abide by all
the terms of this agreement, you must cease using and return or destroy
all copies of Project Gutenberg-tm electronic works in your possession.

1.F.3.  LIMITED RIGHT OF REPLACEMENT OR REFUND - If you discover a
defect in this electronic work within 90 days of receiving it, you can
receive a refund of the money (if any) you paid for it by sending a
written explanation to the person you received the work from.  If you
received the work on a physical medium, you must return the medium with
your written explanation.  The person or entity that provided you with
the defective work may elect to provide a replacement copy in lieu of a
refund.

Section 2.  Information about the Mission of Project Gutenberg-tm

Project Gutenberg-tm is synonymous with the free distribution of
electronic works in formats readable by the widest variety of computers
including obsolete, old, middle-aged and new computers.
"""

FULL_LICENCE = f"""Updated editions will replace the previous one--the old editions
will be renamed.

Creating the works from public domain print editions means that no
one owns a United States copyright in these works, so the Foundation
(and you!) can copy and distribute it in the United States without
permission and without paying copyright royalties.

*** START: FULL LICENSE ***

THE FULL PROJECT GUTENBERG LICENSE
PLEASE READ THIS BEFORE YOU DISTRIBUTE OR USE THIS WORK

To protect the Project Gutenberg-tm mission of promoting the free
distribution of electronic works, by using or distributing this work
you agree to comply with all the terms of the Full Project Gutenberg-tm
License (available with this file or online at
http://gutenberg.org/license).

{BODY_OF_LICENCE * 8}
     http://www.gutenberg.org

This Web site includes information about Project Gutenberg-tm,
including how to make donations to the Project Gutenberg Literary
Archive Foundation, how to help produce our new eBooks, and how to
subscribe to our email newsletter to hear about new eBooks.
"""

SMALL_PRINT = """***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***
Why is this "Small Print!" statement here?  You know: lawyers.
They tell us you might sue us if there is something wrong with
your copy of this etext, even if you got it for free from
someone other than us, and even if what's wrong is not our
fault.

*BEFORE!* YOU USE OR READ THIS ETEXT
By using or reading any part of this PROJECT GUTENBERG-tm
etext, you indicate that you understand, agree to and accept
this "Small Print!" statement.

WHAT IF YOU *WANT* TO SEND MONEY EVEN IF YOU DON'T HAVE TO?
The Project gratefully accepts contributions in money, time,
scanning machines, OCR software, public domain etexts, royalty
free copyright licenses, and every other sort of contribution.

*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*
"""

_FRONT = """The Project Gutenberg EBook of The Raven Book, by Edgar A. Poe

This eBook is for the use of anyone anywhere at no cost and with
almost no restrictions whatsoever.  You may copy it, give it away or
re-use it under the terms of the Project Gutenberg License included
with this eBook or online at www.gutenberg.org


Title: The Raven Book

Author: Edgar A. Poe

Release Date: March 1, 2001 [EBook #42]

Language: English

Character set encoding: UTF-8

"""

_NINETIES = """**The Project Gutenberg Etext of The Raven Book, by Edgar A. Poe**
#3 in our series by Edgar A. Poe

*This 30th edition should be labeled raven30.txt or raven30.zip.

Copyright laws are changing all over the world, be sure to check
the copyright laws for your country before posting these files!!

Please take a look at the important information in this header.
We encourage you to keep this file on your own disk, keeping an
electronic path open for the next readers.  Do not remove this.


**Welcome To The World of Free Plain Vanilla Electronic Texts**

**Etexts Readable By Both Humans and By Computers, Since 1971**

*These Etexts Prepared By Hundreds of Volunteers and Donations*

Information on contacting Project Gutenberg to get Etexts, and
further information is included below.  We need your donations.


The Raven Book

by Edgar A. Poe

June, 1996  [Etext #42]

**The Project Gutenberg Etext of The Raven Book, by Edgar A. Poe**
******This file should be named raven10.txt or raven10.zip******

"""

HEADERS = {
    "none": "",
    "the": f"{_FRONT}*** START OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK ***\n\n\n\n",
    "this": f"{_FRONT}*** START OF THIS PROJECT GUTENBERG EBOOK THE RAVEN BOOK ***\n\n",
    "close": f"{_FRONT}***START OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK***\n\n",
    "number": f"{_FRONT}*** START OF THE PROJECT GUTENBERG EBOOK 42 ***\n\n",
    "asterisks": f"{_FRONT}*** START OF THE PROJECT GUTENBERG EBOOK R*A*V*E*N ***\n\n",
    "lines": (
        f"{_FRONT}*** START OF THE PROJECT GUTENBERG EBOOK THE RAVEN,\nA *BOOK*\nFOR ALL ***\n\n"
    ),
    "unclosed": f"{_FRONT}*** START OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK\n\n",
    "copyrighted": (
        "**This is a COPYRIGHTED Project Gutenberg Etext, Details Below**\n\n"
        "***START OF THE COPYRIGHTED PROJECT GUTENBERG EBOOK THE RAVEN BOOK***\n\n"
    ),
    "one line": f"{' '.join(_FRONT.split())} *** START OF THE PROJECT GUTENBERG EBOOK RAVEN ***\n",
    "beginning": f"{_FRONT}Beginning of this Project Gutenberg EBook of The Raven Book\n\n",
    "italian": f"{_FRONT}*** INIZIO DI QUESTO PROJECT GUTENBERG EBOOK IL CORVO ***\n\n",
    "no line": _FRONT,
    "small print": f"{_NINETIES}{SMALL_PRINT}\n\n\n",
    "small print 2002": (
        f"{_NINETIES}{SMALL_PRINT}".replace("*END*THE", "*END THE").replace("ETEXTS", "EBOOKS")
    ),
    "dutch": (
        "Het Project Gutenberg EBoek De Raaf door Edgar A. Poe\n\n"
        "Dit eBoek is voor kosteloos gebruik door iedereen overal, met vrijwel geen beperkingen\n"
        "van welke soort dan ook, onder de voorwaarden van de Project Gutenberg Licentie.\n\n"
        "Titel: De Raaf\n\nAuteur: Edgar A. Poe\n\nUitgiftedatum: 1 maart 2001 [EBoek #42]\n\n"
        "Taal: Nederlands\n\nCharacter set codering: UTF-8.\n\n"
    ),
    "credits": (
        f"{_FRONT}***START OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK***\n\n\n"
        "E-text prepared by Jane Doe and the Project Gutenberg Online Distributed\n"
        "Proofreading Team (https://www.pgdp.net)\n\n\n\n"
        "Note: Project Gutenberg also has an HTML version of this\n"
        "      file which includes the original illustrations.\n"
        "      See 42-h.htm or 42-h.zip:\n"
        "      (https://www.gutenberg.org/files/42/42-h/42-h.htm)\n\n\n"
        "      Images of the original pages are available through\n"
        "      Internet Archive. See\n"
        "      https://archive.org/details/raven\n\n\n"
    ),
    "transcribed": (
        f"{_NINETIES}{SMALL_PRINT}\n\n"
        "Transcribed from the 1905 Macmillan edition by Jane Doe, email jane@pglaf.org\n\n\n\n"
    ),
    "etext": f"{_NINETIES}{SMALL_PRINT}\n\nThis etext was prepared by Jane Doe, Utah.\n\n\n",
    "gallica credit": (
        f"{_FRONT}*** START OF THIS PROJECT GUTENBERG EBOOK LE CORBEAU ***\n\n\n"
        "Produced by Jane Doe and the Online Distributed\nProofreading Team\n\n"
        "*** This file was produced from images generously made available by the\n"
        "Bibliothèque nationale de France (BnF/Gallica) at http://gallica.bnf.fr ***\n\n\n"
    ),
    "australia": (
        "Project Gutenberg Australia\na treasure-trove of literature\n\n"
        "Title: The Raven Book\nAuthor: Edgar A. Poe\n"
        "* A Project Gutenberg of Australia eBook *\neBook No.: 0602221.txt\n"
        "Language: English\nDate first posted: May 2006\n\n"
        "Project Gutenberg of Australia eBooks are created from printed editions\n"
        "which are in the public domain in Australia, unless a copyright notice\n"
        "is included.\n\n"
        "Copyright laws are changing all over the world. Be sure to check the\n"
        "copyright laws for your country before downloading or redistributing this\nfile.\n\n"
        "This eBook is made available at no cost and with almost no restrictions\nwhatsoever.\n\n"
        "To contact Project Gutenberg of Australia go to http://gutenberg.net.au\n\n\n"
    ),
    "faded page": (
        "* A Distributed Proofreaders Canada eBook *\n\n"
        "This eBook is made available at no cost and with very few restrictions. These\n"
        "restrictions apply only if you make a change in the eBook. Thousands more FREE\n"
        "eBooks are available at https://www.fadedpage.com.\n\n"
        "This work is in the Canadian public domain, but may be under copyright in some\n"
        "countries. IF THE BOOK IS UNDER COPYRIGHT IN YOUR COUNTRY, DO NOT DOWNLOAD OR\n"
        "REDISTRIBUTE THIS FILE.\n\n"
        "_Title:_ The Raven Book\n_Date of first publication:_ 1929\n_Author:_ Edgar A. Poe\n"
        "_Date first posted:_ May 1, 2018\nFaded Page eBook #20180101\n\n"
        "This eBook was produced by: Jane Doe & the online Distributed\n"
        "Proofreaders Canada team at https://www.pgdpcanada.net\n\n\n"
    ),
    "gallica": (
        "Le corbeau / E. Poe\n\nSource gallica.bnf.fr / Bibliothèque nationale de France\n\n"
        "1/ Les contenus accessibles sur le site Gallica sont pour la plupart des reproductions\n"
        "numériques d'oeuvres tombées dans le domaine public, des collections de la BnF.\n\n"
        "7/ Pour obtenir un document de Gallica en haute définition, contacter\n"
        "utilisationcommerciale@bnf.fr.\n\n"
    ),
    "feedbooks": (
        "Copyright: This work is available for countries where copyright is Life+70.\n\n"
        "Note: This book is brought to you by Feedbooks\nhttp://www.feedbooks.com\n"
        "Strictly for personal use, do not use this file for commercial purposes.\n\n"
    ),
    "google": (
        "This is a digital copy of a book that was preserved for generations on library shelves\n"
        "before it was carefully scanned by Google as part of a project to make the world's books\n"
        "discoverable online.\n\nUsage guidelines\n\nGoogle is proud to partner with libraries.\n\n"
        "You can search through the full text of this book on the web\n"
        "at http : //books . google . com/\n\n"
    ),
}
"""What stands before books in the libraries of the net, as their files have it."""

_END = "*** END OF THE PROJECT GUTENBERG EBOOK THE RAVEN BOOK ***"

FOOTERS = {
    "none": "",
    "the": f"\n\n\n\n{_END}\n\n{FULL_LICENCE}",
    "this": f"\n\n{_END.replace('THE PROJ', 'THIS PROJ')}\n\n***** This file should be named"
    f" 42-0.txt or 42-0.zip *****\nThis and all associated files of various formats will be found"
    f" in:\n     http://www.gutenberg.org/4/42/\n\n{FULL_LICENCE}",
    "close": f"\n\n{_END.replace('*** ', '***').replace(' ***', '***')}\n\n{FULL_LICENCE}",
    "lines": f"\n\n{_END.replace('THE RAVEN', 'THE *RAVEN*' + chr(10))}\n\n{FULL_LICENCE}",
    "copyrighted": f"\n\n{_END.replace('THE PROJ', 'THE COPYRIGHTED PROJ')}\n\n{FULL_LICENCE}",
    "end of": f"\n\nEnd of the Project Gutenberg EBook of The Raven Book, by Edgar A. Poe\n\n"
    f"{_END}\n\n{FULL_LICENCE}",
    "end of's": f"\n\nEnd of Project Gutenberg's The Raven Book, by Edgar A. Poe\n\n{FULL_LICENCE}",
    "alone": "\n\nEnd of The Project Gutenberg Etext of The Raven Book, by\nEdgar A. Poe\n",
    "upper case": "\n\nEND OF PROJECT GUTENBERG ETEXT THE RAVEN BOOK\n\n\n",
    "above": "\n\n**This is a COPYRIGHTED Project Gutenberg Etext, Details Above**\n"
    "**End of the Project Gutenberg Etext of The Raven Book**\n",
    "french": f"\n\nFin du Projet Gutenberg de Le corbeau, par Edgar A. Poe\n\n{FULL_LICENCE}",
    "french alone": "\n\nFin de Project Gutenberg's Le corbeau, par Edgar A. Poe\n",
    "french etext": "\n\nFin de l'édition électronique du\nProjet Gutenberg : Le corbeau\n\n"
    f"{_END}\n",
    "german": f"\n\nEnde dieses Projekt Gutenberg Etextes Der Rabe, von Poe\n\n{FULL_LICENCE}",
    "german alone": '\n\nEnde dieses Project Gutenberg Etextes "Der Rabe", von\nEdgar A. Poe\n',
    "german typo": f"\n\nEnde diese Project Gutenberg Etextes Der Rabe\n\n{FULL_LICENCE}",
    "german etext": f"\n\nEnde dieses Etextes Der Rabe\n\n{_END}\n\n{FULL_LICENCE}",
    "spanish": f"\n\nFin del Proyecto Gutenberg EBook de El cuervo, por Poe\n\n{FULL_LICENCE}",
    "portuguese": f"\n\nFim do Projecto Gutenberg de O corvo, por Edgar A. Poe\n\n{FULL_LICENCE}",
    "italian": f"\n\nFine dell'etext Project Gutenberg: Il corvo\n\n{FULL_LICENCE}",
    "italian project": f"\n\nFine del Progetto Gutenberg EBook di Il corvo\n\n{FULL_LICENCE}",
    "dutch": "\n\nEinde van het Project Gutenberg EBoek De Raaf, door Edgar A. Poe\n\n"
    "Dit bestand moet 42-h.html of 42-h.zip heten.\n\n"
    "Dit en de bijbehorende bestanden in verschillende formaten kunnen worden gevonden in:\n\n"
    f"https://www.gutenberg.org/4/42/\n\n{FULL_LICENCE}",
    "finnish": f"\n\nProject Gutenbergin e-kirjan Korppi loppu\n\n{FULL_LICENCE}",
    "swedish": f"\n\nSlut på Project Gutenbergs Korpen, av Edgar A. Poe\n\n{FULL_LICENCE}",
    "chinese": f"\n\n古騰堡計劃電子書《烏鴉》終\n\n{FULL_LICENCE}",
    "no line": f"\n\n{FULL_LICENCE}",
    "file name": f"\n\n***** This file should be named 42.txt or 42.zip *****\n\n{FULL_LICENCE}",
    "small print": "\n\nEnd of the Project Gutenberg EBook of The Raven Book, by Edgar A. Poe\n\n"
    f"{SMALL_PRINT}",
    "top of file": "\n\nEnd of this Project Gutenberg Etext of The Raven Book\n\n"
    "More information about this book is at the top of this file.\n\n"
    "We are now trying to release all our etexts one year in advance\n"
    "of the official release dates, leaving time for better editing.\n",
    "one line": " End of the Project Gutenberg EBook of The Raven Book, by Edgar A. Poe "
    f"{_END} {' '.join(FULL_LICENCE.split())}",
    "one line new": f" {_END} {' '.join(FULL_LICENCE.split())}",
    "notes": f"\n\nTRANSCRIBER\u2019S NOTES\n\nSpelling was kept.\n\n\n{_END}\n\n{FULL_LICENCE}",
    "australia": "\n\nThis site is full of FREE ebooks - Project Gutenberg Australia\n",
    "gutenberg-de": "\n\n\u00a9 1994 - 2012 DER SPIEGEL / Projekt Gutenberg-DE\n",
    "faded page": "\n\n[The end of _The Raven Book_ by Edgar A. Poe]\n",
    "feedbooks": "\n\nwww.feedbooks.com\nFood for the mind\n",
    "wikisource": "\n\nAbout this digital edition\n\nThis e-book comes from the online library"
    " Wikisource. This multilingual digital library, built by volunteers, is committed to"
    " developing a free accessible collection of publications of every kind.\n",
}
"""What stands behind them."""
