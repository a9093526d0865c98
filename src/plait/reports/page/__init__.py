"""A run or a plan as one page of HTML that opens without a network."""

from plait.reports.page.page import render_page, write_page

__all__ = ["render_page", "write_page"]
