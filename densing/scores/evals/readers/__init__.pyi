from .files import read_results as read_results
