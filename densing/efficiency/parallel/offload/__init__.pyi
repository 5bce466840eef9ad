from .sac import DiscreteSac as DiscreteSac
