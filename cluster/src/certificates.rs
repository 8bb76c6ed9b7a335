//! The certificates of a cluster: two authorities of its own, for clients of etcd and for its
//! members among each other. So a node's certificate is none by which a process could become a
//! member of etcd.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use data_encoding::HEXLOWER;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber, date_time_ymd,
};
use sha2::{Digest, Sha256};

use crate::error::ClusterError;

const DAY_S: u64 = 86_400;

/// How long an authority lasts: a replacement touches each machine of the cluster.
const AUTHORITY_DAYS: u64 = 3650;

/// How long a certificate lasts. A renewal is a command, and the status names certificates that
/// end soon.
const CERTIFICATE_DAYS: u64 = 365;

/// A certificate is valid from this long before it was made: clocks differ.
const BEFORE_DAYS: u64 = 1;

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IssuedCertificate {
    pub(crate) certificate_pem: String,
    pub(crate) key_pem: String,
    /// Its serial number, in hexadecimal digits.
    pub(crate) serial: String,
    /// When it ends, in seconds since 1970.
    pub(crate) ends_s: u64,
}

/// The holders of an authority's certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthorityKind {
    /// Clients of etcd, and etcd towards its clients.
    Clients,
    /// Members of etcd among each other.
    Peers,
}

impl AuthorityKind {
    fn name(self, cluster: &str) -> String {
        match self {
            Self::Clients => format!("vrio cluster {cluster}"),
            Self::Peers => format!("vrio cluster {cluster} etcd peers"),
        }
    }
}

/// An authority with its secret key.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

fn refused(error: rcgen::Error) -> ClusterError {
    ClusterError::wrong(format!("a certificate cannot be made: {error}"))
}

fn params(name: &str, days: u64, now_s: u64) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    params.distinguished_name = distinguished;
    let since_1970 = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    params.not_before = since_1970(now_s.saturating_sub(BEFORE_DAYS * DAY_S));
    params.not_after = since_1970(now_s + days * DAY_S);
    params
}

fn authority_params(kind: AuthorityKind, cluster: &str, now_s: u64) -> CertificateParams {
    let mut params = params(&kind.name(cluster), AUTHORITY_DAYS, now_s);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    /// Makes an authority of a cluster, and its own certificate and key.
    pub(crate) fn make(
        kind: AuthorityKind,
        cluster: &str,
        now_s: u64,
    ) -> Result<(Self, IssuedCertificate), ClusterError> {
        let key = KeyPair::generate().map_err(refused)?;
        let params = authority_params(kind, cluster, now_s);
        let issued = IssuedCertificate {
            certificate_pem: params.self_signed(&key).map_err(refused)?.pem(),
            key_pem: key.serialize_pem(),
            serial: String::new(),
            ends_s: now_s + AUTHORITY_DAYS * DAY_S,
        };
        Ok((Self { issuer: Issuer::new(params, key) }, issued))
    }

    /// The authority of a cluster with this secret key.
    pub(crate) fn of_key(
        kind: AuthorityKind,
        cluster: &str,
        key_pem: &str,
    ) -> Result<Self, ClusterError> {
        let key = KeyPair::from_pem(key_pem).map_err(|error| {
            ClusterError::wrong(format!("the authority's key cannot be read: {error}"))
        })?;
        // Of the parameters an issuer has the name alone, which is always the same.
        Ok(Self { issuer: Issuer::new(authority_params(kind, cluster, 0), key) })
    }

    /// A certificate for a client.
    pub(crate) fn client(&self, name: &str, now_s: u64) -> Result<IssuedCertificate, ClusterError> {
        let mut params = params(name, CERTIFICATE_DAYS, now_s);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, now_s)
    }

    /// A certificate for a member of etcd at an address. It is a client's as well: a member asks
    /// itself and its peers, and etcd wants the address that a member sends from in it.
    pub(crate) fn member(
        &self,
        name: &str,
        address: IpAddr,
        now_s: u64,
    ) -> Result<IssuedCertificate, ClusterError> {
        let mut params = params(name, CERTIFICATE_DAYS, now_s);
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        if address.is_loopback() {
            // The system's choice, whichever loopback address is called.
            params.subject_alt_names.push(SanType::IpAddress(Ipv4Addr::LOCALHOST.into()));
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params, now_s)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        now_s: u64,
    ) -> Result<IssuedCertificate, ClusterError> {
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(refused)?;
        let serial = serial_of(&key);
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let certificate = params.signed_by(&key, &self.issuer).map_err(refused)?;
        Ok(IssuedCertificate {
            certificate_pem: certificate.pem(),
            key_pem: key.serialize_pem(),
            serial: HEXLOWER.encode(&serial),
            ends_s: now_s + CERTIFICATE_DAYS * DAY_S,
        })
    }
    /// The list of certificates that are revoked: the serial number of each, and when that was.
    pub(crate) fn revocation_list(
        &self,
        revoked: &[(&str, u64)],
        now_s: u64,
    ) -> Result<String, ClusterError> {
        let since_1970 = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
        let revoked = revoked.iter().map(|(serial, revoked_s)| {
            let serial = HEXLOWER.decode(serial.as_bytes()).map_err(|_| {
                ClusterError::wrong(format!("{serial:?} is no serial number of a certificate"))
            })?;
            Ok(RevokedCertParams {
                serial_number: SerialNumber::from_slice(&serial),
                revocation_time: since_1970(*revoked_s),
                reason_code: None,
                invalidity_date: None,
            })
        });
        let list = CertificateRevocationListParams {
            this_update: since_1970(now_s),
            // etcd does not look at it.
            next_update: since_1970(now_s + AUTHORITY_DAYS * DAY_S),
            crl_number: SerialNumber::from(now_s),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect::<Result<_, ClusterError>>()?,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(refused)
    }
}

/// A serial number that no other key has: a digest of it, as a positive number.
fn serial_of(key: &KeyPair) -> [u8; 16] {
    let digest = Sha256::digest(key.public_key_raw());
    let mut serial: [u8; 16] = digest[..16].try_into().expect("16 of 32 bytes");
    serial[0] = serial[0] & 0x7f | 0x40;
    serial
}
